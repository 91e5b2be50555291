"""Sampling: a request's fields made into the engine's own parameters."""

from __future__ import annotations

from prefold.engine.request import SamplingParams
from prefold.errors import RequestError
from prefold.server.errors import HttpError
from prefold.server.grants import CacheWish
from prefold.server.protocol import CacheFields, GenerationRequest

#: OpenAI's, where a request does not say.
_DEFAULT_TEMPERATURE = 1.0

_DAY_S = 86_400.0


def to_params(
    request: GenerationRequest,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Return how the tokens of a reply are chosen.

    Raises:
        RequestError: A value lies outside its range.
    """
    stop = request.stop
    temperature = request.temperature
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_DEFAULT_TEMPERATURE if temperature is None else temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=request.top_k or 0,
        min_p=request.min_p or 0.0,
        repetition_penalty=(
            1.0 if request.repetition_penalty is None else request.repetition_penalty
        ),
        seed=request.seed,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        ignore_eos=bool(request.ignore_eos),
        logit_bias=tuple(
            (int(token_id), bias) for token_id, bias in (request.logit_bias or {}).items()
        ),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def to_wish(request: GenerationRequest) -> CacheWish:
    """Return what a request asks of the cache.

    Raises:
        HttpError: It says in two ways how long its KV is kept.
    """
    cache = request.cache or CacheFields()
    return CacheWish(
        domain=cache.domain,
        salt=request.cache_salt,
        read=cache.read,
        write=cache.write,
        approved=cache.approved,
        ttl_s=_ttl_of(request),
        priority=cache.priority,
        ends_conversation=cache.ends_conversation,
    )


def _ttl_of(request: GenerationRequest) -> float | None:
    ttl_s = None if request.cache is None else request.cache.ttl_s
    if request.prompt_cache_retention != "24h":
        return ttl_s
    if ttl_s is not None and ttl_s != _DAY_S:
        raise HttpError(
            400,
            "prompt_cache_retention '24h' and cache.ttl_s say how long in two ways; send "
            "one",
            param="prompt_cache_retention",
        )
    return _DAY_S


def check_common(request: GenerationRequest, *, max_n: int) -> int:
    """Check what no field says alone; return how many replies are wanted.

    Raises:
        HttpError: With what to change.
    """
    if request.stream_options is not None and not request.stream:
        raise HttpError(400, "stream_options needs stream: true", param="stream_options")
    n = 1 if request.n is None else request.n
    if n > max_n:
        raise HttpError(400, f"n must be at most {max_n}", param="n")
    _ttl_of(request)  # refuses before a long prompt is read
    return n


def check_max_tokens(name: str, max_tokens: int, max_model_len: int) -> int:
    """Return a stated length that the model can have.

    Raises:
        RequestError: No prompt leaves room for it.
    """
    if max_tokens > max_model_len:
        raise RequestError(
            f"{name} must be at most {max_model_len}, the tokens of prompt and reply that "
            "this model takes"
        )
    return max_tokens
