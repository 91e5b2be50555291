"""Prompts of embeddings: right, exact, keyed by their numbers and by where they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prefold.engine.config import SchedulerConfig
from prefold.engine.image_limits import ImageLimits
from prefold.engine.loading import LoadedModel
from prefold.engine.mixed_prompt import PromptEmbeds
from prefold.engine.prompt_mixer import PromptMixer
from prefold.engine.vision_loading import make_mixer
from prefold.errors import RequestError
from support.tiny_engines import COLD, TinyEngine, assert_equal_outputs, greedy, load_tiny
from support.tiny_models import make_gemma2, make_llama

pytestmark = pytest.mark.e2e

BLOCK = 4
LENGTH = 19


@pytest.fixture(scope="module", params=[make_llama, make_gemma2])
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LoadedModel:
    return load_tiny(request.param(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def mixer(loaded: LoadedModel) -> PromptMixer:
    return make_mixer(loaded, "nowhere", ImageLimits())


def make_engine(
    loaded: LoadedModel, mixer: PromptMixer, scheduler: SchedulerConfig | None = None
) -> TinyEngine:
    return TinyEngine(loaded, block_size=BLOCK, mixer=mixer, scheduler=scheduler)


def make_embeds(seed: int = 0, length: int = LENGTH, hidden: int = 48) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).normal(size=(length, hidden)).astype(np.float32)
    )


def test_the_embeddings_of_tokens_give_the_bits_of_the_tokens(
    loaded: LoadedModel, mixer: PromptMixer
) -> None:
    token_ids = np.random.default_rng(1).integers(0, 256, LENGTH)
    with torch.inference_mode():
        embeds = loaded.model.get_input_embeddings()(torch.from_numpy(token_ids))
    engine = make_engine(loaded, mixer)
    by_id = engine.run(token_ids, greedy(3))
    by_embedding = engine.run(PromptEmbeds(embeds=embeds), greedy(3))
    assert_equal_outputs(by_embedding, by_id)
    # What is known by its number only is not taken for a token.
    assert by_embedding.usage.cached_tokens == 0


def test_warm_chunked_batched_and_mixed_have_the_bits_of_cold(
    loaded: LoadedModel, mixer: PromptMixer
) -> None:
    embeds = make_embeds()
    mask = np.arange(LENGTH) % 3 > 0
    ids = np.arange(LENGTH)
    for prompt in (
        PromptEmbeds(embeds=embeds),
        PromptEmbeds(embeds=embeds.numpy(), token_ids=ids.tolist(), mask=mask.tolist()),
    ):
        reference = make_engine(loaded, mixer).run(prompt, greedy(3), COLD)
        engine = make_engine(loaded, mixer)
        assert_equal_outputs(engine.run(prompt, greedy(3)), reference)
        warm = engine.run(prompt, greedy(3))
        assert_equal_outputs(warm, reference)
        assert warm.usage.cached_tokens == LENGTH // BLOCK * BLOCK
        for chunk in (1, 5):
            scheduler = SchedulerConfig(max_step_tokens=chunk, max_running=1)
            chunked = make_engine(loaded, mixer, scheduler).run(prompt, greedy(3))
            assert_equal_outputs(chunked, reference)
        batch = engine.generate([[1, 2, 3], prompt, list(range(20))], greedy(3))
        assert_equal_outputs(batch[1], reference)
        engine.assert_nothing_is_held()


def test_prompts_share_as_far_as_numbers_and_mask_agree(
    loaded: LoadedModel, mixer: PromptMixer
) -> None:
    embeds, ids = make_embeds(), np.arange(LENGTH)
    mask = np.ones(LENGTH, np.bool_)
    mask[2] = False
    changed = embeds.clone()
    changed[10, 7] += 1e-3
    unmasked = mask.copy()
    unmasked[10] = False
    negated = embeds.clone()
    negated[10, 0] = 0.0
    zero = negated.clone()
    zero[10, 0] = -0.0
    cases = [
        (embeds, mask, embeds, mask, LENGTH - 1),
        (embeds, mask, changed, mask, 10),
        (embeds, mask, embeds, unmasked, 10),
        (negated, mask, zero, mask, 10),
        (embeds, mask, embeds, np.ones(LENGTH, np.bool_), 2),
    ]
    for one, one_mask, other, other_mask, agreed in cases:
        engine = make_engine(loaded, mixer)
        engine.run(PromptEmbeds(embeds=one, token_ids=ids, mask=one_mask))
        prompt = PromptEmbeds(embeds=other, token_ids=ids, mask=other_mask)
        output = engine.run(prompt)
        assert agreed - BLOCK < output.usage.cached_tokens <= agreed
        assert_equal_outputs(output, make_engine(loaded, mixer).run(prompt, None, COLD))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (PromptEmbeds(embeds=make_embeds(hidden=47)), r"shape \[n, 48\]"),
        (PromptEmbeds(embeds=make_embeds()[0]), r"shape \[n, 48\]"),
        (PromptEmbeds(embeds=make_embeds(length=0)), r"shape \[n, 48\]"),
        (PromptEmbeds(embeds=make_embeds().long()), "floating-point"),
        (PromptEmbeds(embeds=make_embeds().int().numpy()), "floating-point"),
        (PromptEmbeds(embeds=make_embeds() * torch.nan), "finite"),
        (PromptEmbeds(embeds=make_embeds() * torch.inf), "finite"),
        (PromptEmbeds(embeds=[[1.0]]), "tensor or an array"),  # type: ignore[arg-type]
        (PromptEmbeds(embeds=make_embeds(), mask=[True] * LENGTH), "come together"),
        (PromptEmbeds(embeds=make_embeds(), token_ids=[1], mask=[True]), "mask must"),
        (
            PromptEmbeds(embeds=make_embeds(), token_ids=[1], mask=[True] * LENGTH),
            "token_ids must",
        ),
        (
            PromptEmbeds(
                embeds=make_embeds(), token_ids=[10**6] * LENGTH, mask=[False] * LENGTH
            ),
            "outside the vocabulary",
        ),
        (PromptEmbeds(embeds=make_embeds(length=4000)), "max_model_len"),
    ],
)
def test_what_is_no_prompt_of_embeddings_is_refused(
    loaded: LoadedModel, mixer: PromptMixer, prompt: PromptEmbeds, message: str
) -> None:
    engine = make_engine(loaded, mixer)
    with pytest.raises(RequestError, match=message):
        engine.submit(prompt)
    engine.assert_nothing_is_held()
