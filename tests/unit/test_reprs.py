"""What is shown of values that hold a client's tokens, texts or secrets."""

from __future__ import annotations

import numpy as np
import pytest

from prefold.cache.selector import ByPrefix
from prefold.cli.options import GenerateOptions, ModelOptions, SamplingOptions
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.request import SamplingParams
from prefold.identity.domain import Domain
from support.fingerprints import make_fingerprint

#: Stands in no other number or word.
CANARY = 918273

PIECE = SequenceSlice(
    token_ids=np.array([CANARY]), start=0, block_ids=np.array([1], np.int32), num_logits=1
)


@pytest.mark.parametrize(
    "value",
    [
        PIECE,
        StepPlan(slices=(PIECE,)),
        SamplingParams(
            stop_token_ids=(CANARY,), stop=(str(CANARY),), logit_bias=((CANARY, 1.0),)
        ),
        ByPrefix(
            fingerprint=make_fingerprint(), domain=Domain("a"), tokens=np.array([CANARY])
        ),
        Domain("a", salt=str(CANARY).encode()),
        GenerateOptions(
            model=ModelOptions(),
            sampling=SamplingOptions(
                max_tokens=1, temperature=0, top_p=1, top_k=0, min_p=0, seed=None
            ),
            prompt=str(CANARY),
            chat=None,
            system=str(CANARY),
            repeat=1,
            as_json=False,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_token_text_or_secret_is_shown(value: object) -> None:
    assert str(CANARY) not in repr(value)
