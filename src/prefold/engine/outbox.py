"""Outbox: finished requests and new tokens that nobody has taken yet."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from prefold.engine.logprobs import TokenLogprob
from prefold.engine.request import RequestId, RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token produced in the last step, and the text that became certain with it."""

    request_id: RequestId
    token_id: int = field(repr=False)
    text: str = field(repr=False)
    logprob: TokenLogprob | None = field(default=None, repr=False)


class Outbox:
    """Outputs until they are taken; tokens until they are taken or the next step."""

    __slots__ = ("_outputs", "_tokens")

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []
        self._tokens: list[NewToken] = []

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def add(self, output: RequestOutput) -> None:
        self._outputs.append(output)

    def add_token(self, token: NewToken) -> None:
        self._tokens.append(token)

    def take(self) -> list[RequestOutput]:
        """Return all outputs and forget them."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def take_tokens(self) -> list[NewToken]:
        """Return the tokens since they were last taken, and forget them."""
        tokens, self._tokens = self._tokens, []
        return tokens

    def put_back(self, outputs: list[RequestOutput]) -> None:
        """Let outputs that were taken be the next ones again."""
        self._outputs[:0] = outputs

    def drop(self, request_ids: AbstractSet[RequestId]) -> None:
        """Forget the outputs of these requests."""
        self._outputs = [o for o in self._outputs if o.request_id not in request_ids]
