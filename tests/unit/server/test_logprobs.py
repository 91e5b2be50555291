from __future__ import annotations

import math

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from prefold.engine.detokenizer import Detokenizer
from prefold.engine.logprobs import TokenLogprob
from prefold.server.logprobs import Echo, LegacyLogprobs, TokenTexts, to_chat_logprobs
from support.tiny_models import END_TOKEN, VOCAB_SIZE, make_tokenizer

TOKENIZER = make_tokenizer()
TEXTS = TokenTexts(TOKENIZER)


def entry(token_id: int, logprob: float, *top: tuple[int, float]) -> TokenLogprob:
    return TokenLogprob(token_id=token_id, logprob=logprob, top=top)


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text))


def make_byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Return one like SentencePiece's: words with a mark before, and single bytes."""
    vocab = {"<unk>": 0, "\u2581the": 1, "\u2581": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]


def test_every_token_of_bytes_has_its_bytes() -> None:
    for token_id in range(256):
        raw = TEXTS.of(token_id).raw
        assert raw is not None
        assert len(raw) == 1
    assert {TEXTS.of(token_id).raw for token_id in range(256)} == {
        bytes([byte]) for byte in range(256)
    }


def test_no_two_tokens_look_alike() -> None:
    shown = [TEXTS.of(token_id).legacy for token_id in range(VOCAB_SIZE)]
    assert len(set(shown)) == VOCAB_SIZE


def test_parts_of_a_character_are_written_as_bytes() -> None:
    pieces = [TEXTS.of(token_id) for token_id in ids("€")]
    assert [piece.escaped for piece in pieces] == ["\\xe2", "\\x82", "\\xac"]
    assert [piece.legacy for piece in pieces] == [
        "bytes:\\xe2",
        "bytes:\\x82",
        "bytes:\\xac",
    ]
    assert b"".join(piece.raw or b"" for piece in pieces).decode() == "€"


def test_the_replacement_character_itself_is_a_text() -> None:
    pieces = [TEXTS.of(token_id) for token_id in ids("\N{REPLACEMENT CHARACTER}")]
    assert b"".join(piece.raw or b"" for piece in pieces).decode() == "\ufffd"


def test_special_tokens_and_empty_rows_have_a_name() -> None:
    assert TEXTS.of(VOCAB_SIZE - 2).escaped == END_TOKEN
    assert TEXTS.of(VOCAB_SIZE - 1).escaped == f"token_id:{VOCAB_SIZE - 1}"


def test_tokenizers_with_single_bytes_and_marked_words_are_known() -> None:
    texts = TokenTexts(make_byte_fallback_tokenizer())
    assert texts.of(1).escaped == " the"
    assert texts.of(1).raw == b" the"
    assert texts.of(3 + 0xE2).raw == b"\xe2"
    assert texts.of(3 + ord("a")).escaped == "a"


def test_chat_lists_the_tokens_and_their_alternatives() -> None:
    [a, b] = ids("xy")
    reply = to_chat_logprobs(TEXTS, [entry(a, -0.5, (b, -0.25), (a, -0.5))])
    [shown] = reply.content
    assert (shown.token, shown.logprob, shown.bytes) == ("x", -0.5, [120])
    assert [(top.token, top.logprob) for top in shown.top_logprobs] == [
        ("y", -0.25),
        ("x", -0.5),
    ]


def test_what_is_impossible_is_a_number_that_json_has() -> None:
    [a] = ids("x")
    reply = to_chat_logprobs(TEXTS, [entry(a, -math.inf, (a, -math.inf))])
    assert reply.content[0].logprob == -9999.0
    assert reply.content[0].top_logprobs[0].logprob == -9999.0


def collector(*, has_top: bool = True) -> LegacyLogprobs:
    return LegacyLogprobs(TEXTS, Detokenizer(TOKENIZER).start(), has_top=has_top)


def test_offsets_are_places_in_the_text() -> None:
    text = "a€the abc"
    collected = collector()
    for token_id in ids(text):
        collected.add(entry(token_id, -1.0))
    taken = collected.take()
    assert taken.tokens[:4] == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    # The character counts when it is whole.
    assert taken.text_offset[:5] == [0, 1, 1, 1, 2]
    for token, offset in list(zip(taken.tokens, taken.text_offset, strict=True))[4:]:
        assert text[offset:].startswith(token)


def test_the_token_itself_is_always_among_the_alternatives() -> None:
    a, b, c = ids("xyz")
    collected = collector()
    collected.add(entry(c, -3.0, (a, -0.5), (b, -1.0)))
    collected.add(entry(a, -0.5, (a, -0.5), (b, -1.0)))
    assert collected.take().top_logprobs == [
        {"x": -0.5, "y": -1.0, "z": -3.0},
        {"x": -0.5, "y": -1.0},
    ]


def test_without_alternatives_there_is_no_list_of_them() -> None:
    collected = collector(has_top=False)
    collected.add(entry(ids("x")[0], -3.0))
    taken = collected.take()
    assert (taken.token_logprobs, taken.top_logprobs) == ([-3.0], None)


def test_what_was_taken_does_not_come_again() -> None:
    collected = collector()
    [a, b] = ids("xy")
    collected.add(entry(a, -1.0))
    assert collected.take().text_offset == [0]
    collected.add(entry(b, -2.0))
    taken = collected.take()
    assert (taken.tokens, taken.text_offset) == (["y"], [1])


def test_an_echoed_prompt_comes_first() -> None:
    prompt = ids("the €")
    collected = collector()
    collected.add_prompt(
        Echo(text="the €"), prompt, [None, *(entry(t, -1.0) for t in prompt[1:])]
    )
    collected.add(entry(ids("x")[0], -2.0))
    taken = collected.take()
    assert taken.token_logprobs[0] is None
    assert taken.top_logprobs is not None
    assert taken.top_logprobs[0] is None
    assert len(taken.tokens) == len(prompt) + 1
    assert taken.text_offset[-1] == len("the €")


def test_a_token_that_the_tokenizer_put_before_the_text_takes_no_place_in_it() -> None:
    prompt = [VOCAB_SIZE - 2, *ids("xy")]
    collected = collector()
    collected.add_prompt(Echo(text="xy", num_hidden=1), prompt, [None, None, None])
    taken = collected.take()
    assert taken.tokens == [END_TOKEN, "x", "y"]
    assert taken.text_offset == [0, 0, 1]


def test_a_reply_begins_behind_the_prompt_as_it_was_written() -> None:
    # A tokenizer may make other text of it: composed characters, lower case.
    collected = collector()
    collected.add_prompt(Echo(text="longer"), ids("xy"), [None, None])
    collected.add(entry(ids("x")[0], -1.0))
    assert collected.take().text_offset == [0, 1, len("longer")]


def test_a_prompt_may_have_tokens_that_no_text_has() -> None:
    nameless = VOCAB_SIZE - 1
    prompt = [*ids("x"), nameless, *ids("y")]
    assert TEXTS.decode(prompt) == "xy"
    collected = collector()
    collected.add_prompt(Echo(text="xy"), prompt, [None, None, None])
    taken = collected.take()
    assert taken.tokens == ["x", f"token_id:{nameless}", "y"]
    assert taken.text_offset == [0, 1, 1]
