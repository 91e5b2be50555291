"""Requests: how tokens are to be chosen, and what a finished request reports.

Everything here is a checked, frozen value. Text and token ids belong to the client,
so no ``repr`` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

import torch

from prefold.cache import Approval, MissReason
from prefold.engine.logprobs import TokenLogprob
from prefold.errors import RequestError

RequestId = NewType("RequestId", str)

_MAX_COUNT = 2**31 - 1
_MAX_STOP_IDS = 1024
_MAX_STOPS = 16
_MAX_STOP_LENGTH = 1024
_MAX_LOGPROBS = 20
_MAX_PROMPT_LOGPROBS = 5
_MAX_BIASES = 1024
_MAX_BIAS = 100.0
_MAX_TEMPERATURE = 100.0
_MAX_PENALTY = 100.0
_SEED_LIMIT = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen, and when it ends.

    Attributes:
        max_tokens: Tokens to produce at most; 0 computes the prompt and no reply.
        temperature: 0 takes the most likely token; up to 100.
        top_p: Keep the most likely tokens that together reach this probability.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        min_p: Drop tokens less likely than this share of the most likely one.
        repetition_penalty: Above 1 makes tokens of the prompt and the reply so far
            less likely, below 1 more; from 0.01 to 100.
        seed: Equal seeds give equal replies; ``None`` takes a new one each time.
        stop_token_ids: End the reply besides the model's own end tokens, and are not
            part of its text.
        stop: At most 16 texts; the reply ends before the one that is complete first.
        ignore_eos: Go on past the model's own end tokens.
        logit_bias: Token ids and what is added to their logits, from -100 to 100.
        logprobs: Report each token's log-probability and so many alternatives, from 0
            to 20; of the model's own distribution, before bias, penalty and temperature.
        prompt_logprobs: The same for the tokens of the prompt, from 0 to 5.
        return_logits: Keep the logits that each token was chosen from.

    Raises:
        RequestError: A value has another type or lies outside its range.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = field(default=(), repr=False)
    stop: tuple[str, ...] = field(default=(), repr=False)
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = field(default=(), repr=False)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_logits: bool = False

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, 0, _MAX_COUNT)
        _check_float("temperature", self.temperature, 0.0, _MAX_TEMPERATURE)
        _check_float("top_p", self.top_p, 0.0, 1.0, is_open=True)
        _check_int("top_k", self.top_k, 0, _MAX_COUNT)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float(
            "repetition_penalty", self.repetition_penalty, 1 / _MAX_PENALTY, _MAX_PENALTY
        )
        if self.seed is not None:
            _check_int("seed", self.seed, -_SEED_LIMIT, _SEED_LIMIT - 1)
        _check_stop_ids(self.stop_token_ids)
        _check_stops(self.stop)
        _check_biases(self.logit_bias)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, _MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_int("prompt_logprobs", self.prompt_logprobs, 0, _MAX_PROMPT_LOGPROBS)
        _check_flag("ignore_eos", self.ignore_eos)
        _check_flag("return_logits", self.return_logits)


class FinishReason(Enum):
    """How a request ended; each ends in exactly one of these."""

    #: At an end token.
    STOP = "stop"
    #: At ``max_tokens``.
    LENGTH = "length"
    #: Its client gave it up.
    ABORTED = "aborted"
    #: ``RequestOutput.error`` says why.
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A request's tokens.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Of those, the ones whose KV came from the cache.
        completion_tokens: Tokens produced, an end token included.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A request's durations, in seconds.

    Attributes:
        queued_s: From submission to the first admission.
        ttft_s: From submission to the first token; ``None`` if there was none.
        tpot_s: Mean distance of the tokens after the first; ``None`` below two.
        total_s: From submission to the end.
    """

    queued_s: float
    ttft_s: float | None
    tpot_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """What became of a request.

    Attributes:
        text: The reply, without the token that ended it.
        token_ids: Every token produced, that one included.
        miss_reason: Why the prompt's cached prefix was not longer.
        logits: With ``return_logits``, float32 ``[len(token_ids), vocabulary]``.
        logprobs: With ``logprobs``, one for each of ``token_ids``, but for those at the
            end that lie wholly in what a stop text cut off.
        prompt_logprobs: With ``prompt_logprobs``, one for each token of the prompt, as
            far as it was computed; ``None`` for the first, which nothing precedes.
        approval: What was approved, where that was asked for and did not fail.
        error: A sentence if ``finish_reason`` is ``FAILED``, or if it is ``ABORTED``
            because another model took the place of the request's own.
    """

    request_id: RequestId
    text: str = field(repr=False)
    token_ids: tuple[int, ...] = field(repr=False)
    usage: Usage
    timing: Timing
    finish_reason: FinishReason
    # May name the prompt's own tokens, as the text does.
    miss_reason: MissReason | None = field(repr=False)
    # Tensors compare element by element, which is no answer to "equal?".
    logits: torch.Tensor | None = field(default=None, repr=False, compare=False)
    logprobs: tuple[TokenLogprob, ...] | None = field(default=None, repr=False)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = field(
        default=None, repr=False
    )
    approval: Approval | None = None
    error: str | None = None


def _check_int(name: str, value: object, lowest: int, highest: int) -> None:
    # A bool is an int to Python, and never meant as one here.
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number, got {_show(value)}")
    if not lowest <= value <= highest:
        raise RequestError(f"{name} must be from {lowest} to {highest}, got {_show(value)}")


def _check_float(
    name: str, value: object, lowest: float, highest: float, *, is_open: bool = False
) -> None:
    """Check the range; ``is_open`` leaves ``lowest`` itself out of it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {_show(value)}")
    # NaN lies in no range, and an int too large for a float can still be compared.
    is_inside = lowest < value <= highest if is_open else lowest <= value <= highest
    if not is_inside:
        above = f"above {lowest:g} and at most" if is_open else f"from {lowest:g} to"
        raise RequestError(f"{name} must be {above} {highest:g}, got {_show(value)}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be True or False, got {_show(value)}")


def _check_stop_ids(value: object) -> None:
    if not isinstance(value, tuple):
        raise RequestError(
            f"stop_token_ids must be a tuple of token ids, got a {type(value).__name__}"
        )
    if len(value) > _MAX_STOP_IDS:
        raise RequestError(
            f"stop_token_ids may hold {_MAX_STOP_IDS} token ids, got {len(value)}"
        )
    for index, token_id in enumerate(value):
        _check_token_id(f"stop_token_ids[{index}]", token_id)


def _check_token_id(name: str, value: object) -> None:
    # The position, not the value: token ids do not enter messages.
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number")
    if not 0 <= value <= _MAX_COUNT:
        raise RequestError(f"{name} must be from 0 to {_MAX_COUNT}")


def _check_stops(value: object) -> None:
    if not isinstance(value, tuple) or len(value) > _MAX_STOPS:
        raise RequestError(f"stop must be a tuple of at most {_MAX_STOPS} texts")
    for index, text in enumerate(value):
        if not isinstance(text, str) or not 1 <= len(text) <= _MAX_STOP_LENGTH:
            raise RequestError(
                f"stop[{index}] must be a text of 1 to {_MAX_STOP_LENGTH} characters"
            )


def _check_biases(value: object) -> None:
    if not isinstance(value, tuple) or len(value) > _MAX_BIASES:
        raise RequestError(f"logit_bias must be a tuple of at most {_MAX_BIASES} pairs")
    for index, pair in enumerate(value):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise RequestError(f"logit_bias[{index}] must be a token id and a number")
        _check_token_id(f"logit_bias[{index}]: a token id", pair[0])
        _check_float(f"logit_bias[{index}][1]", pair[1], -_MAX_BIAS, _MAX_BIAS)


def _show(value: object) -> str:
    """Name a number by its value and anything else by its type; both stay short."""
    if isinstance(value, float | bool) or value is None:
        return repr(value)
    if isinstance(value, int):
        # ``repr`` refuses integers of thousands of digits.
        if value.bit_length() <= 64:
            return repr(value)
        return f"a number of {value.bit_length()} bits"
    return f"a {type(value).__name__}"
