"""Canaries: texts and token ids that are sent once, and looked for everywhere."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, quote_plus

from support.tiny_models import make_tokenizer

#: Tokens in a row that cannot be there by chance.
_RUN = 6

_NO_NUMBER = re.compile(r"[^0-9a-z]+")


class Canaries:
    """Knows what was sent, by name, and how it looks in every dress."""

    def __init__(self) -> None:
        self._tokenizer = make_tokenizer()
        self._forms: dict[str, set[str]] = {}
        self._runs: dict[str, set[str]] = {}

    def text(self, name: str, text: str) -> str:
        """Watch for a text, and for the tokens that it is."""
        self._watch(name, text, self._tokenizer.encode(text))
        return text

    def tokens(self, name: str, token_ids: Sequence[int]) -> list[int]:
        """Watch for token ids, and for the text that they are."""
        self._watch(name, str(self._tokenizer.decode(list(token_ids))), token_ids)
        return list(token_ids)

    def found_in(self, text: str, *, but: Iterable[str] = ()) -> list[str]:
        """Return the names of those that a text shows, leaving some out."""
        lower = text.lower()
        # Whatever sets numbers apart.
        numbers = f" {_NO_NUMBER.sub(' ', lower)} "
        left_out = set(but)
        return [
            name
            for name, forms in self._forms.items()
            if name not in left_out
            and (
                any(form in lower for form in forms)
                or any(run in numbers for run in self._runs[name])
            )
        ]

    def _watch(self, name: str, text: str, token_ids: Sequence[int]) -> None:
        self._forms[name] = {form.lower() for form in _forms(text)}
        self._runs[name] = {
            f" {' '.join(map(str, token_ids[start : start + _RUN]))} "
            for start in range(max(len(token_ids) - _RUN + 1, 0))
        }


def _forms(text: str) -> set[str]:
    raw = text.encode()
    forms = {
        text,
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(text)[1:-1],
        repr(raw)[2:-1],
        quote(text, safe=""),
        quote(text),
        quote_plus(text),
        raw.hex(),
    }
    for shift in range(3):
        # What comes before and after changes the first and the last characters.
        coded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        inner = coded[4 if shift else 0 : -1]
        forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return forms


class Recorder(logging.Handler):
    """Keeps all that a log record holds, not only what a formatter would show."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        held = [record.getMessage(), str(record.msg), repr(record.args)]
        if record.exc_info:
            held.append(self._formatter.formatException(record.exc_info))
        if record.exc_text:
            held.append(record.exc_text)
        if record.stack_info:
            held.append(record.stack_info)
        self.texts.append(" ".join([record.name, *held]))
