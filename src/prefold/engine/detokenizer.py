"""The detokenizer: text from token ids, piece by piece.

A token is not a piece of text: a character can be spread over several tokens, and what
a token looks like can depend on the one before it (a leading space). So the last few
tokens are decoded together, and a piece is what follows the text already given::

    ids     ... a b c | d e | f g
                        ^     ^   ^
                   window  shown  end       piece = decode(d e f g), from the end of
                                                    decode(d e) on

While that text ends in U+FFFD, a character may be incomplete and the piece waits. The
window then moves up, so a token costs the same however long the text has become.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

#: Tokens that may wait. More of them are not one character, which has at most four
#: bytes, and would make each further one dearer.
_MAX_WAITING = 16

#: An incomplete character has at most three bytes, in as many tokens, and shows as at
#: most as many U+FFFD.
_MAX_INCOMPLETE = 3

#: Tokens kept for context when too many wait.
_NUM_CONTEXT = 8


class TextStream:
    """The text of one sequence so far, and the tokens that do not show yet.

    Owned by the sequence. All pieces together are what the tokenizer makes of all
    tokens at once, except where it rewrites text that it had already given (a byte
    that makes the valid characters before it invalid).
    """

    __slots__ = ("_given", "_hidden_ids", "_pieces", "_shown", "_tokenizer", "_window")

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, hidden_ids: AbstractSet[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = hidden_ids
        self._window: list[int] = []
        #: Leading tokens of the window that do not wait.
        self._shown = 0
        #: Leading characters of the window's text that have been given.
        self._given = 0
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All pieces so far. Costs as much as the text is long."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """Add a token and return the text that is now certain, often one word."""
        if token_id in self._hidden_ids:
            return ""
        self._window.append(token_id)
        text = self._decode()
        if len(text) > self._given and not text.endswith(_REPLACEMENT):
            return self._show(text)
        if len(self._window) - self._shown > _MAX_WAITING:
            return self._show_certain(text)
        return ""

    def finish(self) -> str:
        """Return what was still waiting, incomplete characters as U+FFFD.

        Afterwards the stream takes no more tokens.
        """
        return self._show(self._decode())

    def fork(self) -> TextStream:
        """Return an independent stream that continues from here."""
        stream = TextStream(self._tokenizer, self._hidden_ids)
        stream._window = list(self._window)
        stream._shown = self._shown
        stream._given = self._given
        stream._pieces = list(self._pieces)
        return stream

    def _show(self, text: str) -> str:
        """Give the rest of the window's text; the tokens that waited become its start."""
        piece = self._give(text)
        del self._window[: self._shown]
        self._shown = len(self._window)
        self._given = len(self._decode())
        return piece

    def _show_certain(self, text: str) -> str:
        """Give the window's text but for what may be an incomplete character.

        The window may be cut anywhere, also inside a character: it begins with other
        text then, but what is not given yet are still the last characters of it.
        """
        num_open = 0
        while num_open < _MAX_INCOMPLETE and text.endswith(_REPLACEMENT):
            text = text[:-1]
            num_open += 1
        num_open -= max(0, self._given - len(text))  # of those, already given
        piece = self._give(text)
        del self._window[:-_NUM_CONTEXT]
        self._shown = _NUM_CONTEXT - _MAX_INCOMPLETE
        self._given = max(0, len(self._decode()) - num_open)
        return piece

    def _give(self, text: str) -> str:
        piece = text[self._given :]
        if piece:
            self._pieces.append(piece)
        return piece

    def _decode(self) -> str:
        text = self._tokenizer.decode(
            self._window,
            skip_special_tokens=False,
            # Rewrites what was given before: " ." to "." across tokens.
            clean_up_tokenization_spaces=False,
        )
        if not isinstance(text, str):
            raise TypeError("a tokenizer made several texts of one list of tokens")
        return text


class Detokenizer:
    """Starts the text streams of sequences over one tokenizer.

    The tokenizer's special tokens are never part of a text.
    """

    __slots__ = ("_special_ids", "_tokenizer")

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._special_ids = frozenset(tokenizer.all_special_ids) | {
            token_id for token_id, token in added.items() if token.special
        }

    def start(self, stop_token_ids: AbstractSet[int] = frozenset()) -> TextStream:
        """Return an empty stream that leaves ``stop_token_ids`` out as well."""
        return TextStream(self._tokenizer, self._special_ids | stop_token_ids)
