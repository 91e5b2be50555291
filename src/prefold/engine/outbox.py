"""Outbox: finished requests and new tokens that nobody has taken yet."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from prefold.engine.logprobs import TokenLogprob
from prefold.engine.request import RequestId, RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token, and the text that became certain with it.

    It comes in the step that produced it. Only where a stop text may still cut its
    log-probability off, it comes as soon as that is decided.

    Attributes:
        logprob: None also for a token that lies in what a stop text cut off.
    """

    request_id: RequestId
    token_id: int = field(repr=False)
    text: str = field(repr=False)
    logprob: TokenLogprob | None = field(default=None, repr=False)


class Outbox:
    """Outputs until they are taken; tokens until they are taken or the next step."""

    __slots__ = ("_outputs", "_rest", "_tokens")

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []
        self._tokens: list[NewToken] = []
        #: Of the outputs' requests, which may end between two steps.
        self._rest: list[NewToken] = []

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def add(self, output: RequestOutput, rest: list[NewToken]) -> None:
        """Add an output, and its request's last tokens, which go with it."""
        self._outputs.append(output)
        self._rest += rest

    def add_tokens(self, tokens: list[NewToken]) -> None:
        self._tokens += tokens

    def take(self) -> list[RequestOutput]:
        """Return all outputs and forget them; their last tokens can now be taken."""
        outputs, self._outputs = self._outputs, []
        self._tokens += self._rest
        self._rest = []
        return outputs

    def take_tokens(self) -> list[NewToken]:
        """Return the tokens since they were last taken, and forget them."""
        tokens, self._tokens = self._tokens, []
        return tokens

    def put_back(self, outputs: list[RequestOutput]) -> None:
        """Let outputs that were taken be the next ones again."""
        self._outputs[:0] = outputs

    def drop(self, request_ids: AbstractSet[RequestId]) -> None:
        """Forget the outputs of these requests, and what goes with them."""
        self._outputs = [o for o in self._outputs if o.request_id not in request_ids]
        self._rest = [t for t in self._rest if t.request_id not in request_ids]
