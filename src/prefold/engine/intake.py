"""Intake: makes the sequence and the reply of a request that was checked."""

from __future__ import annotations

from prefold.blocks.table import TokenIds
from prefold.engine.admission import check_capacity
from prefold.engine.config import ModelLimits, RequestOptions
from prefold.engine.detokenizer import Detokenizer
from prefold.engine.parts import EngineParts
from prefold.engine.prompt import Prompt, encode_prompt
from prefold.engine.reply import Reply
from prefold.engine.request import RequestId, SamplingParams
from prefold.engine.sequence import Sequence
from prefold.engine.sidecar import PromptLogprobs


class Intake:
    """Numbers requests and opens their replies, keeping nothing. Owned by the engine.

    Args:
        parts: The engine's.
        limits: The model's.
        sidecar_width: Alternatives that are kept of a prompt's tokens.
    """

    __slots__ = ("_detokenizer", "_limits", "_num_arrivals", "_parts", "_sidecar_width")

    def __init__(self, parts: EngineParts, limits: ModelLimits, sidecar_width: int) -> None:
        self._num_arrivals = 0
        self._parts = parts
        self._limits = limits
        self._sidecar_width = sidecar_width
        tokenizer = parts.tokenizer
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)

    def _next_arrival(self) -> int:
        """Return the next number in the order of arrival."""
        self._num_arrivals += 1
        return self._num_arrivals

    def read(self, prompt: Prompt) -> TokenIds:
        """Return the token ids of a prompt.

        Raises:
            RequestError: It could not be served.
        """
        return encode_prompt(prompt, self._parts.tokenizer, self._limits)

    def fit(self, token_ids: TokenIds, params: SamplingParams | None) -> int:
        """Refuse what the memory can never hold; return the tokens of the reply.

        Args:
            token_ids: Of the prompt.
            params: Of the reply; None for none.

        Raises:
            RequestError: With what to change.
        """
        room = self._limits.max_model_len - len(token_ids)
        max_tokens = 0 if params is None else min(params.max_tokens, room)
        check_capacity(self._parts.cache, len(token_ids), max_tokens)
        return max_tokens

    def branch(self, parent: Sequence) -> Sequence:
        """Return a sequence that goes on from where another one is."""
        arrival = self._next_arrival()
        return parent.branch(request_id_of(arrival), arrival)

    def open(
        self,
        token_ids: TokenIds,
        params: SamplingParams,
        max_tokens: int,
        options: RequestOptions,
    ) -> Reply:
        """Return a new reply with its queued sequence.

        Raises:
            RequestError: A bias is for a token outside the vocabulary.
        """
        parts = self._parts
        sampler_state = parts.sampler.start(
            params, token_ids, fallback_seed=parts.entropy()
        )
        arrival = self._next_arrival()
        sequence = Sequence(
            request_id_of(arrival),
            arrival,
            token_ids,
            max_tokens=max_tokens,
            fingerprint=parts.fingerprint,
            options=options,
        )
        if params.prompt_logprobs is not None:
            known = PromptLogprobs(len(token_ids), self._sidecar_width)
            sequence.prompt_logprobs = known
        stop_ids = frozenset(params.stop_token_ids)
        text = None if self._detokenizer is None else self._detokenizer.start(stop_ids)
        if not params.ignore_eos:
            stop_ids |= self._limits.eos_token_ids
        return Reply(sequence, sampler_state, text, stop_ids=stop_ids, now=parts.clock())


def request_id_of(arrival: int) -> RequestId:
    """Return the id of the request with this number in the order of arrival."""
    return RequestId(f"request-{arrival}")
