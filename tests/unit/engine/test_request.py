from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from prefold.engine.request import (
    FinishReason,
    RequestId,
    RequestOutput,
    SamplingParams,
    Timing,
    Usage,
)
from prefold.errors import RequestError


def test_defaults_are_greedy_and_short() -> None:
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.seed) == (16, 0.0, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 1),
        ("temperature", 1),
        ("temperature", 100.0),
        ("temperature", 5e-324),
        ("top_p", 5e-324),
        ("top_p", 1),
        ("top_k", 0),
        ("min_p", 1.0),
        ("repetition_penalty", 0.01),
        ("seed", 2**63 - 1),
        ("seed", -(2**63)),
        ("stop_token_ids", (0, 5)),
    ],
)
def test_values_at_the_edge_of_their_range_are_taken(name: str, value: Any) -> None:
    SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", True),
        ("max_tokens", 1.0),
        ("max_tokens", 2**31),
        pytest.param("max_tokens", 10**5000, id="huge"),
        ("max_tokens", None),
        ("temperature", -0.001),
        ("temperature", 100.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        pytest.param("temperature", 10**400, id="huge-int"),
        ("temperature", False),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.0000001),
        ("top_p", math.nan),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 1.0),
        ("seed", True),
        ("stop_token_ids", [1]),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (True,)),
        ("stop_token_ids", ("x",)),
        ("stop_token_ids", tuple(range(1025))),
        ("ignore_eos", 1),
        ("return_logits", None),
        ("stop", ["x"]),
        ("stop", ("",)),
        ("stop", (1,)),
        ("stop", ("x" * 1025,)),
        ("stop", ("x",) * 17),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("prompt_logprobs", 6),
        ("prompt_logprobs", 1.0),
        ("logit_bias", {1: 2.0}),
        ("logit_bias", ((1,),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, 101.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((1, 0.0),) * 1025),
    ],
)
def test_a_senseless_value_is_refused_in_one_short_sentence(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert message.startswith(name)
    assert len(message) < 120


def test_a_stop_id_does_not_enter_the_message() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(stop_token_ids=(3, -987654))
    assert "987654" not in str(caught.value)


def test_an_output_does_not_show_what_was_said() -> None:
    output = RequestOutput(
        request_id=RequestId("r1"),
        text="a secret",
        token_ids=(424242,),
        usage=Usage(prompt_tokens=3, cached_tokens=2, completion_tokens=1),
        timing=Timing(queued_s=0.0, ttft_s=0.1, tpot_s=None, total_s=0.1),
        finish_reason=FinishReason.STOP,
        miss_reason=None,
        logits=torch.tensor([[313131.0]]),
    )
    shown = repr(output)
    assert "r1" in shown
    assert not any(part in shown for part in ("secret", "424242", "313131"))
