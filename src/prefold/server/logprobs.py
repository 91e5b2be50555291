r"""Log-probabilities as OpenAI's two routes write them, and the texts of single tokens.

A token need not be a text: it may be part of a character. Then its bytes are written
out, so that no two tokens look alike because both are unreadable::

    chat           "token": "\xe2\x82", "bytes": [226, 130]
    completions    "tokens": ["bytes:\xe2\x82"]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from prefold.engine.detokenizer import TextStream
from prefold.engine.logprobs import TokenLogprob
from prefold.server.protocol_chat import ChatLogprobs, TokenLogprobReply, TopLogprob
from prefold.server.protocol_completions import CompletionLogprobs

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

#: What stands for "next to impossible": JSON has no infinity.
_LEAST_LOGPROB = -9999.0

#: How tokenizers of SentencePiece write one byte, and a space.
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenText:
    """What one token looks like.

    Attributes:
        text: Its text; None where it is only a part of a character.
        raw: Its bytes; None where they cannot be found out.
        is_named: Whether the tokenizer knows it.
    """

    text: str | None = field(repr=False)
    raw: bytes | None = field(repr=False)
    is_named: bool = True

    @property
    def escaped(self) -> str:
        """Its text, or its bytes written out."""
        if self.text is not None:
            return self.text
        return "".join(f"\\x{byte:02x}" for byte in self.raw or b"")

    @property
    def legacy(self) -> str:
        """The same as the completions route writes it."""
        return self.escaped if self.text is not None else f"bytes:{self.escaped}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """How a prompt looks at the beginning of its reply.

    Attributes:
        num_hidden: Leading tokens that are not in the text: the tokenizer put them there.
    """

    text: str = field(repr=False)
    num_hidden: int = 0


class TokenTexts:
    """What the tokens of one tokenizer look like. May be used by several threads."""

    __slots__ = ("_known", "_tokenizer")

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        # Never more than the vocabulary has.
        self._known: dict[int, TokenText] = {}

    def of(self, token_id: int) -> TokenText:
        """Return what a token looks like."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens together, special ones included."""
        named = [token_id for token_id in token_ids if self.of(token_id).is_named]
        text = self._tokenizer.decode(
            named, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)

    def start(self) -> TextStream:
        """Return a stream that hides no token; those without a name do not belong in it."""
        return TextStream(self._tokenizer, frozenset())

    def _look_up(self, token_id: int) -> TokenText:
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(piece, str):
            # A row of the model that no token belongs to; some tokenizers fail on it.
            return TokenText(text=f"token_id:{token_id}", raw=None, is_named=False)
        shown = str(
            self._tokenizer.decode(
                [token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
        if _REPLACEMENT not in shown:
            # Decoded alone, a word loses the space before it.
            if piece.startswith(_SPACE) and not shown.startswith(" "):
                shown = f" {shown}"
            return TokenText(text=shown, raw=shown.encode())
        raw = _bytes_of(piece)
        if raw is None or raw.decode(errors="replace") != shown:
            return TokenText(text=shown, raw=None)
        return TokenText(text=None, raw=raw)


def to_chat_logprobs(texts: TokenTexts, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Return log-probabilities as the chat route writes them."""
    return ChatLogprobs(
        content=[
            TokenLogprobReply(
                token=texts.of(entry.token_id).escaped,
                logprob=_finite(entry.logprob),
                bytes=_numbers(texts.of(entry.token_id)),
                top_logprobs=[
                    TopLogprob(
                        token=texts.of(token_id).escaped,
                        logprob=_finite(logprob),
                        bytes=_numbers(texts.of(token_id)),
                    )
                    for token_id, logprob in entry.top
                ],
            )
            for entry in entries
        ],
        refusal=None,
    )


class LegacyLogprobs:
    """Collects what the completions route says of one choice's tokens.

    Args:
        texts: Of the tokens.
        stream: Of the reply, to tell where in its text each token begins.
        has_top: Whether alternatives were asked for.
    """

    __slots__ = (
        "_has_top",
        "_logprobs",
        "_offset",
        "_offsets",
        "_stream",
        "_texts",
        "_tokens",
        "_top",
    )

    def __init__(self, texts: TokenTexts, stream: TextStream, *, has_top: bool) -> None:
        self._texts = texts
        self._stream = stream
        self._has_top = has_top
        self._offset = 0
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add_prompt(
        self,
        echo: Echo,
        token_ids: Sequence[int],
        entries: Sequence[TokenLogprob | None],
    ) -> None:
        """Add the tokens of the prompt, before any of the reply. Some 20 us each.

        Args:
            echo: How the prompt looks.
            token_ids: Of the prompt.
            entries: One for each; None for the first.
        """
        stream = self._texts.start()
        for index, (token_id, entry) in enumerate(zip(token_ids, entries, strict=True)):
            self._append(token_id, entry)
            if index >= echo.num_hidden and self._texts.of(token_id).is_named:
                self._offset += len(stream.push(token_id))
        self._offset = len(echo.text)

    def add(self, entry: TokenLogprob) -> None:
        """Add a token of the reply."""
        self._append(entry.token_id, entry)
        self._offset += len(self._stream.push(entry.token_id))

    def take(self) -> CompletionLogprobs:
        """Return what was added since the last time, and forget it."""
        taken = CompletionLogprobs(
            tokens=self._tokens,
            token_logprobs=self._logprobs,
            top_logprobs=self._top if self._has_top else None,
            text_offset=self._offsets,
        )
        self._tokens, self._logprobs, self._top, self._offsets = [], [], [], []
        return taken

    def _append(self, token_id: int, entry: TokenLogprob | None) -> None:
        self._tokens.append(self._texts.of(token_id).legacy)
        self._logprobs.append(None if entry is None else _finite(entry.logprob))
        self._top.append(None if entry is None else self._alternatives(entry))
        self._offsets.append(self._offset)

    def _alternatives(self, entry: TokenLogprob) -> dict[str, float]:
        found: dict[str, float] = {}
        # The token itself is always among them. Of two that look alike the likelier stays.
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            found.setdefault(self._texts.of(token_id).legacy, _finite(logprob))
        return found


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)


def _numbers(text: TokenText) -> list[int] | None:
    return None if text.raw is None else list(text.raw)


def _bytes_of(piece: str) -> bytes | None:
    """Return the bytes of a token as the tokenizer writes it, if it is one of bytes."""
    found = _BYTE_TOKEN.fullmatch(piece)
    if found is not None:
        return bytes([int(found[1], 16)])
    numbers = [_byte_of(character) for character in piece]
    return None if None in numbers else bytes(n for n in numbers if n is not None)


def _byte_of(character: str) -> int | None:
    """Return the byte that a character of byte-level tokenizers stands for.

    Printable characters stand for themselves, the others in order for 256 and on.
    """
    code = ord(character)
    if _is_plain(code):
        return code
    return _SHIFTED[code - 256] if 256 <= code < 256 + len(_SHIFTED) else None


def _is_plain(code: int) -> bool:
    return 33 <= code <= 126 or 161 <= code <= 172 or 174 <= code <= 255


_SHIFTED = tuple(code for code in range(256) if not _is_plain(code))
