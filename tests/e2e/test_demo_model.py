"""The demo model: greedy text equals what transformers' own ``generate`` gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from prefold.engine.assembly import Silence
from prefold.engine.demo_model import ensure_demo_model
from prefold.engine.detokenizer import Detokenizer
from prefold.engine.engine import Engine
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.engine.request import SamplingParams
from support.tiny_engines import TinyEngine

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_TOKENS = 12

#: Two logits this close may change places between two ways of adding the same numbers.
TIE = 1e-3

QUESTIONS = (
    "What is a prefix?",
    "Name three rivers in Europe.",
    "Why is the sky blue?",
    "Write one sentence about a lighthouse.",
    "What is 12 times 3?",
    "Translate 'good morning' into French.",
    "Who wrote Faust?",
    "Give a rhyme for 'house'.",
    "What does a cache do?",
    "List the first five prime numbers.",
)


@pytest.fixture(scope="module")
def directory() -> Path:
    return ensure_demo_model(Silence())


@pytest.fixture(scope="module")
def loaded(directory: Path) -> LoadedModel:
    return load_model(directory, LoadOptions())


@pytest.fixture
def engine(loaded: LoadedModel) -> Iterator[Engine]:
    engine = TinyEngine(loaded, num_blocks=128, has_tokenizer=True)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def original(directory: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, local_files_only=True
    )
    return model


def render(tokenizer: PreTrainedTokenizerBase, question: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    assert isinstance(text, str)
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return token_ids


def test_greedy_text_equals_that_of_transformers(
    engine: Engine, loaded: LoadedModel, original: PreTrainedModel
) -> None:
    prompts = [render(loaded.tokenizer, question) for question in QUESTIONS]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=NUM_TOKENS))
    num_ties = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        ids, scores = generate(original, prompt)
        assert len(output.token_ids) == len(ids)
        for index, (ours, theirs) in enumerate(zip(output.token_ids, ids, strict=True)):
            if ours != theirs:
                best, second = torch.topk(scores[index], 2).values.tolist()
                assert best - second <= TIE
                num_ties += 1
                break
        else:
            special = loaded.tokenizer.decode(ids, skip_special_tokens=True)
            assert output.text == special
    # All begin with the same system part, which is computed for one of them only.
    hits = [output.usage.cached_tokens for output in outputs]
    assert sum(hit >= 16 for hit in hits) == len(QUESTIONS) - 1
    assert num_ties <= 1


def generate(
    model: PreTrainedModel, prompt: list[int]
) -> tuple[list[int], list[torch.Tensor]]:
    """Return the reply's token ids, and the logits that each was chosen from."""
    found = model.generate(  # type: ignore[operator]
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    ids: list[int] = found.sequences[0, len(prompt) :].tolist()
    return ids, [row[0].float() for row in found.logits]


def test_pieces_of_its_text_add_up(loaded: LoadedModel) -> None:
    tokenizer = loaded.tokenizer
    detokenizer = Detokenizer(tokenizer)
    rng = random.Random(1)  # noqa: S311 -- a test's dice
    samples = [tokenizer.encode(text) for text in (*QUESTIONS, "naïve 🦊 ćevapi\t\n  x")]
    samples += [rng.choices(range(tokenizer.vocab_size), k=40) for _ in range(50)]
    for token_ids in samples:
        stream = detokenizer.start()
        pieces = [stream.push(token_id) for token_id in token_ids] + [stream.finish()]
        expected = tokenizer.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert "".join(pieces) == expected
