"""Verification prompts: the built-in ones, chosen for their lengths, and a user's own.

The built-in ones are random token ids that depend on the vocabulary and the block size
only, so that a failure can be named and repeated. Lengths lie at the edges of blocks,
and beginnings are shared in every way a cache can get wrong::

    edges      1  2  B-1  B  B+1 ... 10B    nothing in common
    family     one beginning of whole blocks, other ends
    forks      one prompt, changed inside one block after 3, 4 or more of its tokens
    beginnings strict beginnings of a longer one
    chain      each begins with the one before
    long       1,000 tokens and more, most of them in common
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prefold.blocks.table import TOKEN_DTYPE, TokenIds
from prefold.engine.config import ModelLimits
from prefold.engine.prompt import TextEncoder, encode_prompt
from prefold.errors import InvalidInputError

#: Left of a model's context for a reply.
REPLY_ROOM = 32

_LONG = 1_000
_MAX_FILE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationPrompt:
    """A prompt under test; no two of a verification have one name.

    Attributes:
        name: What it is, without any of its content.
        num_reply_tokens: The first is decided by the prompt alone. For the second, a
            token is computed by itself, which takes as long as a short prompt.
    """

    name: str
    token_ids: TokenIds = field(repr=False, compare=False)
    num_reply_tokens: int = 2

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


def built_in_prompts(limits: ModelLimits, block_size: int) -> list[VerificationPrompt]:
    """Return the prompts that fit the model; at least 40 where 1,100 tokens do."""
    draw = _Draw(limits.vocab_size)
    prompts = [
        *_edges(draw, block_size),
        *_family(draw, block_size),
        *_forks(draw, block_size),
        *_beginnings(draw, block_size),
        *_chain(draw, block_size),
        *_long(draw, block_size),
    ]
    longest = limits.max_model_len - REPLY_ROOM
    return [prompt for prompt in prompts if prompt.num_tokens <= longest]


def stand_ins(limits: ModelLimits, block_size: int) -> list[VerificationPrompt]:
    """Return two short prompts that every variant can run, beside a user's own."""
    draw = _Draw(limits.vocab_size, seed=1)
    start = draw.tokens(2 * block_size)
    prompts = [
        _prompt("stand-in 1", start, draw.tokens(block_size), has_second=True),
        _prompt("stand-in 2", start, draw.tokens(block_size - 1), has_second=True),
    ]
    longest = limits.max_model_len - REPLY_ROOM
    return [prompt for prompt in prompts if prompt.num_tokens <= longest]


def strange_tokens(limits: ModelLimits, num_tokens: int, seed: int) -> TokenIds:
    """Return token ids that no prompt has anything to do with."""
    return _Draw(limits.vocab_size, seed=1_000 + seed).tokens(num_tokens)


class _Draw:
    """Random token ids, the same in every process."""

    def __init__(self, vocab_size: int, *, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._bits = np.random.PCG64(seed)

    def tokens(self, num_tokens: int) -> TokenIds:
        raw = self._bits.random_raw(num_tokens)
        return (raw % np.uint64(self._vocab_size)).astype(TOKEN_DTYPE)

    def other_than(self, token_id: int) -> TokenIds:
        """Return one token id that differs from ``token_id``, if there is another."""
        return np.array([(token_id + 1) % self._vocab_size], dtype=TOKEN_DTYPE)


def _prompt(name: str, *parts: TokenIds, has_second: bool = False) -> VerificationPrompt:
    return VerificationPrompt(
        name=name,
        token_ids=np.concatenate(parts),
        num_reply_tokens=1 + has_second,
    )


def _edges(draw: _Draw, size: int) -> Iterator[VerificationPrompt]:
    lengths = {1, 2, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1}
    lengths |= {3 * size - 1, 3 * size, 4 * size, 5 * size + 5, 10 * size}
    for length in sorted(lengths - {0}):
        has_second = length in (size, 3 * size, 4 * size)
        yield _prompt(f"length {length}", draw.tokens(length), has_second=has_second)


def _family(draw: _Draw, size: int) -> Iterator[VerificationPrompt]:
    start = draw.tokens(2 * size)
    lengths = (1, 2, 5, max(size - 1, 1), size, size + 1, 2 * size, 2 * size + 9)
    for number, length in enumerate(lengths, 1):
        yield _prompt(f"family {number}", start, draw.tokens(length))


def _forks(draw: _Draw, size: int) -> Iterator[VerificationPrompt]:
    base = draw.tokens(3 * size + 3)
    yield _prompt("fork base", base)
    # More than four siblings with one first token would push each other out of reach.
    for agreed in sorted({min(3, size - 1), min(4, size - 1), size - 1}):
        place = 2 * size + agreed
        changed = draw.other_than(int(base[place]))
        parts = (base[:place], changed, base[place + 1 :])
        has_second = agreed == size - 1
        yield _prompt(f"fork after {agreed}", *parts, has_second=has_second)


def _beginnings(draw: _Draw, size: int) -> Iterator[VerificationPrompt]:
    whole = draw.tokens(4 * size + 2)
    yield _prompt("whole", whole)
    for length in (3, size, 2 * size + 6, len(whole) - 1):
        yield _prompt(f"beginning of {length}", whole[:length])


def _chain(draw: _Draw, size: int) -> Iterator[VerificationPrompt]:
    tokens = draw.tokens(size + 5)
    for number in range(1, 10):
        yield _prompt(f"chain {number}", tokens)
        tokens = np.concatenate((tokens, draw.tokens(size // 4 + 2)))


def _long(draw: _Draw, size: int) -> Iterator[VerificationPrompt]:
    start = draw.tokens(_LONG * 9 // 10 // size * size)
    first = draw.tokens(_LONG - len(start))
    second = draw.tokens(_LONG + 3 - len(start))
    yield _prompt(f"long {_LONG}", start, first)
    yield _prompt(f"long {_LONG + 3}", start, second)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """A prompt as a file has it.

    Attributes:
        where: File and line number.
    """

    where: str
    number: int
    prompt: str | list[int] = field(repr=False)


def read_prompts(path: Path) -> list[PromptLine]:
    """Read one prompt a line: text, or JSON objects with a ``prompt``.

    A file is taken as JSON lines if it is named ``.jsonl`` or its first line is an
    object with a ``prompt``. Empty lines are skipped.

    Raises:
        InvalidInputError: With the line's number, and nothing of its content.
    """
    lines = list(_read_lines(path))
    if not lines:
        raise InvalidInputError(f"{path} holds no prompts; write one a line")
    is_json = path.suffix == ".jsonl" or _is_object_with_prompt(lines[0][1])
    prompts = []
    for number, line in lines:
        where = f"{path}, line {number}"
        prompt = _parse_object(line, where) if is_json else line
        prompts.append(PromptLine(where=where, number=number, prompt=prompt))
    return prompts


def encode_prompts(
    lines: Iterable[PromptLine], encoder: TextEncoder, limits: ModelLimits
) -> list[VerificationPrompt]:
    """Turn what a file had into token ids.

    Raises:
        InvalidInputError: A prompt is too long or has ids that do not exist; with the
            line's number.
    """
    longest = limits.max_model_len - REPLY_ROOM
    prompts = []
    for line in lines:
        try:
            token_ids = encode_prompt(line.prompt, encoder, limits)
        except InvalidInputError as exc:
            raise InvalidInputError(f"{line.where}: {exc}") from exc
        if len(token_ids) > longest:
            raise InvalidInputError(
                f"{line.where}: the prompt has {len(token_ids)} tokens, and {longest} are "
                f"the most that can be verified with max_model_len {limits.max_model_len}"
            )
        name = f"line {line.number}"
        prompts.append(VerificationPrompt(name=name, token_ids=token_ids))
    return prompts


def _read_lines(path: Path) -> Iterable[tuple[int, str]]:
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise InvalidInputError(
                f"{path} has {size} bytes; prompt files of up to {_MAX_FILE_BYTES} are read"
            )
        content = path.read_bytes()
    except OSError as exc:
        raise InvalidInputError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        last = content[: exc.start].count(b"\n") + 1
        # Not ``from exc``, which holds the content.
        raise InvalidInputError(f"{path}, line {last}: this is not UTF-8 text") from None
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.removesuffix("\r")
        if stripped.strip():
            yield number, stripped


def _is_object_with_prompt(line: str) -> bool:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "prompt" in value


def _parse_object(line: str, where: str) -> str | list[int]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as exc:
        # Not ``from exc``: its text quotes the line.
        reason = exc.msg if isinstance(exc, json.JSONDecodeError) else "it is too large"
        raise InvalidInputError(f"{where}: this is not JSON: {reason}") from None
    if not isinstance(value, dict) or "prompt" not in value:
        raise InvalidInputError(f'{where}: this is no object with a "prompt"')
    prompt = value["prompt"]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(type(token_id) is int for token_id in prompt):
        return prompt
    raise InvalidInputError(f'{where}: "prompt" must be a text or a list of token ids')
