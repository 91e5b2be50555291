"""Reply: what the engine keeps of an open request besides its sequence."""

from __future__ import annotations

import torch

from prefold.engine.detokenizer import TextStream
from prefold.engine.held_tokens import HeldTokens
from prefold.engine.logprobs import TokenLogprob, measure_rows, to_logprobs
from prefold.engine.outbox import NewToken
from prefold.engine.request import (
    FinishReason,
    RequestOutput,
    SamplingParams,
    Timing,
    Usage,
)
from prefold.engine.sampler import SamplerState
from prefold.engine.sequence import Sequence
from prefold.engine.stop_text import StopText


class Reply:
    """Tokens, text and times of one request. Owned by the engine.

    Attributes:
        stop_ids: Tokens that end it.
        admitted_at: When it was first given blocks.
    """

    __slots__ = (
        "_first_token_at",
        "_held",
        "_last_token_at",
        "_logits",
        "_num_characters",
        "_num_given_tokens",
        "_stop_text",
        "_submitted_at",
        "_text",
        "admitted_at",
        "params",
        "sampler_state",
        "sequence",
        "stop_ids",
    )

    def __init__(
        self,
        sequence: Sequence,
        sampler_state: SamplerState,
        text: TextStream | None,
        *,
        stop_ids: frozenset[int],
        now: float,
    ) -> None:
        self.sequence = sequence
        self.params: SamplingParams = sampler_state.params
        self.sampler_state = sampler_state
        self.stop_ids = stop_ids
        self.admitted_at: float | None = None
        self._text = text
        self._stop_text = StopText(self.params.stop)
        self._held = HeldTokens()
        # Of the text, whether or not it is part of the reply.
        self._num_characters = 0
        self._logits: list[torch.Tensor] = []
        self._submitted_at = now
        self._first_token_at: float | None = None
        self._last_token_at = now
        # Tokens that a fork has from its parent; they took it no time.
        self._num_given_tokens = 0

    def add(self, token_id: int, logits: torch.Tensor, now: float) -> list[NewToken]:
        """Take in a sampled token; return it with the text that is now certain.

        Where it is the last one, that is all text that was still held back. Where
        log-probabilities are wanted and a stop text may cut it off, it waits for that
        to be decided: nothing may be returned, or tokens that had to wait before it.
        """
        self.sequence.append(token_id)
        if self.params.return_logits:
            # A copy, so that the rest of the step's logits can go.
            self._logits.append(logits.detach().to("cpu", torch.float32, copy=True))
        if self._first_token_at is None:
            self._first_token_at = now
        self._last_token_at = now
        begins_at, text = self._num_characters, ""
        if self._text is not None:
            piece = self._text.push(token_id)
            self._num_characters += len(piece)
            text = self._stop_text.push(piece)
        has_ended = self.finish_reason() is not None
        if has_ended:
            text += self.flush()
        token = NewToken(
            request_id=self.sequence.request_id,
            token_id=token_id,
            text=text,
            logprob=self._measure(token_id, logits),
        )
        if token.logprob is None:
            return [token]
        self._held.add(begins_at, token)
        if has_ended:
            return self.end_tokens()
        may_be_cut = self._text is not None and bool(self.params.stop)
        return self._held.let_go(self._stop_text.num_given if may_be_cut else None)

    def renew(self, text: TextStream | None, stop_ids: frozenset[int]) -> None:
        """Begin anew under another model; only while there is no token."""
        self._text = text
        self.stop_ids = stop_ids

    def flush(self) -> str:
        """Return the text that was still waiting for more tokens."""
        if self._text is None:
            return ""
        return self._stop_text.push(self._text.finish()) + self._stop_text.finish()

    def end_tokens(self) -> list[NewToken]:
        """Return the tokens that still wait. ``flush`` was called before."""
        stop = self._stop_text
        return self._held.end(stop.num_given if stop.is_found else None)

    def _measure(self, token_id: int, logits: torch.Tensor) -> TokenLogprob | None:
        width = self.params.logprobs
        if width is None:
            return None
        rows = measure_rows(logits[None], [token_id], width)
        [logprob] = to_logprobs(rows, [token_id], width)
        return logprob

    def finish_reason(self) -> FinishReason | None:
        """Return how the request has ended by itself, or None if it goes on."""
        sequence = self.sequence
        num_sampled = sequence.num_tokens - sequence.num_prompt_tokens
        if self._stop_text.is_found:
            return FinishReason.STOP
        if num_sampled and sequence.last_token in self.stop_ids:
            return FinishReason.STOP
        if not sequence.wants_token and sequence.num_computed >= sequence.num_prompt_tokens:
            return FinishReason.LENGTH
        return None

    def output(
        self, reason: FinishReason, now: float, error: str | None = None
    ) -> RequestOutput:
        """Return the finished request. ``end_tokens`` was called before."""
        sequence = self.sequence
        prompt = sequence.num_prompt_tokens
        token_ids = tuple(sequence.token_ids(prompt, sequence.num_tokens).tolist())
        return RequestOutput(
            request_id=sequence.request_id,
            text=self._stop_text.text,
            token_ids=token_ids,
            usage=Usage(
                prompt_tokens=prompt,
                cached_tokens=sequence.num_cached,
                completion_tokens=len(token_ids),
            ),
            timing=self._timing(now, len(token_ids) - self._num_given_tokens),
            finish_reason=reason,
            miss_reason=sequence.miss,
            logits=torch.stack(self._logits) if self._logits else None,
            logprobs=None if self.params.logprobs is None else tuple(self._held.logprobs),
            prompt_logprobs=self._prompt_logprobs(),
            error=error,
        )

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        known, width = self.sequence.prompt_logprobs, self.params.prompt_logprobs
        if known is None or width is None:
            return None
        return known.to_values(self.sequence.token_ids(0, self.sequence.num_tokens), width)

    def fork(self, twin: Sequence, index: int, now: float) -> Reply:
        """Return the reply of fork number ``index``, whose sequence is ``twin``."""
        text = None if self._text is None else self._text.fork()
        reply = Reply(
            twin, self.sampler_state.fork(index), text, stop_ids=self.stop_ids, now=now
        )
        reply._stop_text = self._stop_text.fork()
        reply._held = self._held.fork(twin.request_id)
        reply._num_characters = self._num_characters
        reply._logits = list(self._logits)
        reply._num_given_tokens = twin.num_tokens - twin.num_prompt_tokens
        return reply

    def _timing(self, now: float, num_timed: int) -> Timing:
        start = self._submitted_at
        first = self._first_token_at
        return Timing(
            queued_s=(now if self.admitted_at is None else self.admitted_at) - start,
            ttft_s=None if first is None else first - start,
            tpot_s=(
                None
                if first is None or num_timed < 2
                else (self._last_token_at - first) / (num_timed - 1)
            ),
            total_s=now - start,
        )
