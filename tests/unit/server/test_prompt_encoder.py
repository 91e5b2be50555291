from __future__ import annotations

import pytest

from prefold.engine.config import ModelLimits
from prefold.errors import RequestError
from prefold.server.prompt_encoder import PromptEncoder
from support.tiny_models import VOCAB_SIZE, make_tokenizer

TOKENIZER = make_tokenizer()


def encoder(max_model_len: int = 100) -> PromptEncoder:
    limits = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=max_model_len)
    return PromptEncoder(TOKENIZER, limits)


@pytest.mark.parametrize("text", ["", "x", "the abc " * 30, "x" * 399, "abc" * 600])
def test_a_text_has_the_tokens_of_its_tokenizer(text: str) -> None:
    # The last one is longer than the first pieces, in fewer tokens than twice the limit.
    limit = 400 if len(text) > 1000 else 100
    assert encoder(limit).encode(text) == TOKENIZER.encode(text)


def test_what_is_somewhat_too_long_is_still_counted() -> None:
    assert len(encoder().encode("x" * 400)) == 400


@pytest.mark.parametrize("length", [401, 1_000, 10_000_000])
def test_what_is_far_too_long_is_refused_without_being_read(length: int) -> None:
    tokenizer = make_tokenizer()
    read: list[int] = []
    encode = tokenizer.encode

    def watched(text: str, *, add_special_tokens: bool) -> list[int]:
        read.append(len(text))
        return list(encode(text, add_special_tokens=add_special_tokens))

    tokenizer.encode = watched
    limits = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=100)
    with pytest.raises(RequestError, match="shorten the prompt"):
        PromptEncoder(tokenizer, limits).encode("x" * length)
    assert sum(read) <= 400


def test_what_has_few_tokens_at_first_and_many_later_is_refused() -> None:
    tokenizer = make_tokenizer()
    encode = tokenizer.encode

    def sparse(text: str, *, add_special_tokens: bool) -> list[int]:
        return list(encode(text.replace(" ", ""), add_special_tokens=add_special_tokens))

    tokenizer.encode = sparse
    limits = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=100)
    with pytest.raises(RequestError, match="more than 400 tokens"):
        PromptEncoder(tokenizer, limits).encode(" " * 1500 + "x" * 500)


def test_special_tokens_are_the_tokenizer_s_unless_the_text_brings_them() -> None:
    tokenizer = make_tokenizer()
    calls: list[bool] = []
    encode = tokenizer.encode

    def watched(text: str, *, add_special_tokens: bool) -> list[int]:
        calls.append(add_special_tokens)
        return list(encode(text))

    tokenizer.encode = watched
    limits = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=100)
    PromptEncoder(tokenizer, limits).encode("x")
    PromptEncoder(tokenizer, limits).encode("x", has_special_tokens=True)
    assert calls == [True, False]
