from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from prefold.engine.detokenizer import Detokenizer, TextStream
from support.tiny_models import make_tokenizer

TOKENIZER = make_tokenizer()
EOS = TOKENIZER.eos_token_id
TEXTS = [
    "the other one",
    "  leading and trailing  ",
    "naïve café — 😀👩‍👩‍👧‍👦🏳️‍🌈 漢字かな交じり文 한국어",
    "e\u0301 \u200d\ufeff\ufe0f \x00\t\r\n end",
    "a � real replacement character ��, and one at the end �",
    "",
]


def make_metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with byte fallback that marks a word by a space before it."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    pieces = ["▁", "a", "b", "c", "▁a", "▁ab", "bc", "</s>", "<unk>"]
    vocab.update({piece: 256 + index for index, piece in enumerate(pieces)})
    merges = [("▁", "a"), ("▁a", "b"), ("b", "c")]
    backend = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>")  # noqa: S106
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    tokenizer.add_special_tokens({"eos_token": "</s>"})
    return tokenizer


METASPACE = make_metaspace_tokenizer()


def whole(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    text = tokenizer.decode(
        token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text


def pieces_of(stream: TextStream, token_ids: list[int]) -> list[str]:
    pieces = [stream.push(token_id) for token_id in token_ids]
    return [*pieces, stream.finish()]


@pytest.mark.parametrize("tokenizer", [TOKENIZER, METASPACE], ids=["bytes", "metaspace"])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_to_the_whole_text(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    stream = Detokenizer(tokenizer).start()
    pieces = pieces_of(stream, token_ids)
    assert "".join(pieces) == whole(tokenizer, token_ids) == stream.text


@pytest.mark.parametrize("tokenizer", [TOKENIZER, METASPACE], ids=["bytes", "metaspace"])
def test_half_a_character_is_never_given(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "aé漢😀" * 5
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    stream = Detokenizer(tokenizer).start()
    given = ""
    for token_id in token_ids:
        given += stream.push(token_id)
        assert text.startswith(given)
    assert given == text
    assert stream.finish() == ""


# Any bytes, most of them no UTF-8: every order of lead and continuation bytes.
@given(st.lists(st.sampled_from([b"a", b"\x80", b"\xbf", b"\xc3", b"\xe4", b"\xf0"])))
def test_any_bytes_add_up_to_the_whole_text(parts: list[bytes]) -> None:
    token_ids = [byte_token(byte) for byte in b"".join(parts)]
    stream = Detokenizer(TOKENIZER).start()
    assert "".join(pieces_of(stream, token_ids)) == whole(TOKENIZER, token_ids)


@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=60))
def test_any_tokens_add_up_to_the_whole_text(token_ids: list[int]) -> None:
    stream = Detokenizer(TOKENIZER).start()
    assert "".join(pieces_of(stream, token_ids)) == whole(TOKENIZER, token_ids)


@given(st.lists(st.integers(256, 264), max_size=30))
def test_words_with_spaces_before_them_add_up(token_ids: list[int]) -> None:
    stream = Detokenizer(METASPACE).start()
    assert "".join(pieces_of(stream, token_ids)) == whole(METASPACE, token_ids)


def test_long_rubbish_is_given_on_the_way_and_a_character_after_it_whole() -> None:
    rubbish = [byte_token(0x80)] * 101
    for length in range(80, 101):
        token_ids = rubbish[:length] + [byte_token(byte) for byte in "😀a".encode()]
        stream = Detokenizer(TOKENIZER).start()
        pieces = [stream.push(token_id) for token_id in token_ids]
        assert sum(map(len, pieces[:70])) > 40
        assert "".join(pieces) == "\ufffd" * length + "😀a"


def test_characters_that_never_end_with_a_token_come_out_whole() -> None:
    # Every token ends one character and begins the next, as pieces of CJK text may.
    by_token = {token: piece for piece, token in TOKENIZER.get_vocab().items()}
    by_byte = {byte: by_token[token] for byte, token in _BYTE_TOKENS.items()}
    head, tail = "😀".encode()[:2], "😀".encode()[2:]
    pieces = ["".join(by_byte[byte] for byte in data) for data in (head, tail + head, tail)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    for length in range(60):
        stream = Detokenizer(tokenizer).start()
        pieces = [stream.push(token) for token in [0, *[1] * length, 2]]
        assert "".join(pieces) == "😀" * (length + 1)
        assert length < 20 or sum(map(len, pieces[:20])) > 8
        assert stream.finish() == ""


def test_special_tokens_and_stop_ids_are_left_out() -> None:
    a, the, stop = (TOKENIZER.get_vocab()[piece] for piece in ("a", "the", "c"))
    stream = Detokenizer(TOKENIZER).start(frozenset({stop}))
    assert "".join(pieces_of(stream, [a, EOS, the, stop])) == "athe"


def test_an_added_special_token_without_a_role_is_left_out() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<|tool|>"], special_tokens=True)
    token_ids = tokenizer.encode("a<|tool|>b", add_special_tokens=False)
    stream = Detokenizer(tokenizer).start()
    assert "".join(pieces_of(stream, token_ids)) == whole(tokenizer, token_ids) == "ab"


def test_a_special_token_first_does_not_cost_the_next_one_its_place() -> None:
    eos, word = (METASPACE.get_vocab()[piece] for piece in ("</s>", "▁ab"))
    stream = Detokenizer(METASPACE).start()
    token_ids = [eos, word, eos, word]
    assert "".join(pieces_of(stream, token_ids)) == whole(METASPACE, token_ids) == "ab ab"


def test_a_fork_goes_on_from_the_middle_of_a_character() -> None:
    head, tail = "x😀".encode()[:-1], "x😀".encode()[-1:]
    stream = Detokenizer(TOKENIZER).start()
    for byte in head:
        stream.push(byte_token(byte))
    fork = stream.fork()
    assert fork.push(byte_token(tail[0])) == "😀"
    assert stream.finish() == "\ufffd"
    assert (fork.text, stream.text) == ("x😀", "x\ufffd")


class CountingTokenizer(PreTrainedTokenizerFast):
    """Counts how many tokens it is asked to decode."""

    num_decoded = 0

    def decode(self, token_ids: list[int], **options: bool) -> str:  # type: ignore[override]
        self.num_decoded += len(token_ids)
        return super().decode(token_ids, **options)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["words", "rubbish", "emoji"])
def test_a_token_costs_the_same_however_long_the_text(kind: str) -> None:
    tokenizer = CountingTokenizer(  # type: ignore[no-untyped-call]
        tokenizer_object=TOKENIZER.backend_tokenizer
    )
    data = {"words": b"ab c", "rubbish": b"\x80\x80\x80\x80", "emoji": "😀".encode()}[kind]
    stream = Detokenizer(tokenizer).start()
    costs = []
    for _ in range(4):
        tokenizer.num_decoded = 0
        for byte in data * 100:
            stream.push(byte_token(byte))
        costs.append(tokenizer.num_decoded / 400)
    assert max(costs) <= min(costs) * 1.2
    assert max(costs) < 80


def byte_token(byte: int) -> int:
    """The token of one byte in the byte-level tokenizer."""
    return _BYTE_TOKENS[byte]


def _make_byte_tokens() -> dict[int, int]:
    # The alphabet writes printable bytes as themselves and the others from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    letters.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    vocab = TOKENIZER.get_vocab()
    return {byte: vocab[letter] for byte, letter in letters.items()}


_BYTE_TOKENS = _make_byte_tokens()
