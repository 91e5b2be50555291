"""Sequence: one stream of tokens, and how far it has got.

::

    tokens      [ prompt                    | sampled so far | room up to the limit ]
    computed    [ KV exists            ]
    to compute                          [                    ]

Prefill and decode are not two modes: a sequence only has tokens whose KV is missing, and
gets a new token whenever none is.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np

from prefold.blocks.table import TOKEN_DTYPE, TokenIds
from prefold.cache import APPROVING, Access, Lease, Lookup, MissReason
from prefold.cache.contents import ContentItem
from prefold.engine.activation import number_tokens
from prefold.engine.adapter import Adapter
from prefold.engine.config import RequestOptions
from prefold.engine.request import RequestId
from prefold.engine.sequence_content import SequenceContent
from prefold.engine.sidecar import PromptLogprobs
from prefold.engine.waiting import Wait
from prefold.errors import InvariantError
from prefold.identity.fingerprint import Fingerprint


class SequenceState(Enum):
    """Where a sequence is; always exactly one of these."""

    #: Never admitted; holds nothing.
    QUEUED = auto()
    #: Holds a lease.
    RUNNING = auto()
    #: Was running, gave its blocks back, and waits to go on; holds nothing.
    PREEMPTED = auto()
    ENDED = auto()


class Sequence:
    """State of one sequence, changed by the scheduler; tokens are added by the engine.

    Attributes:
        arrival: Its number in the order of arrival over all sequences.
        num_prompt_tokens: Leading tokens that the client gave.
        num_tokens: Tokens known so far.
        num_computed: Leading tokens whose KV exists. A pending copy does not count.
        num_restored: How many had been computed when it was preempted. It comes back
            once there are blocks for all of them.
        num_cached: Prompt tokens it did not compute itself, up to its first preemption.
        counts_hits: Whether ``num_cached`` still counts.
        is_started: Whether it was advanced since it was last admitted.
        content: What its prompt has besides tokens; None if nothing.
        prompt_logprobs: Of its prompt, if its client wants them.
        adapter: What its tokens pass, the version of its submission; None for the model
            as it is.
        adapted_from: The first position that passes it.
        item: What the cache gets in place of tokens from there on; None for the tokens.
        lookup: What its tokens would hit, as of the tree's version and the limit in
            ``lookup_version``.
        wait: What it waits for instead of being admitted.
        last_step: The last step in which it was given tokens, or was admitted.
        queued_step: The step in which it was preempted.
        miss: Why its first match was not longer; None before the first admission.
    """

    __slots__ = (
        "_buffer",
        "_filed",
        "adapted_from",
        "adapter",
        "arrival",
        "content",
        "counts_hits",
        "fingerprint",
        "is_started",
        "item",
        "last_step",
        "lease",
        "lookup",
        "lookup_version",
        "miss",
        "num_cached",
        "num_computed",
        "num_prompt_tokens",
        "num_restored",
        "num_tokens",
        "options",
        "prompt_logprobs",
        "queued_step",
        "request_id",
        "state",
        "wait",
    )

    def __init__(
        self,
        request_id: RequestId,
        arrival: int,
        prompt: TokenIds,
        *,
        max_tokens: int,
        fingerprint: Fingerprint,
        options: RequestOptions,
    ) -> None:
        # One more, so that appending the last token needs no special case.
        self._buffer = np.empty(len(prompt) + max_tokens + 1, dtype=TOKEN_DTYPE)
        self._buffer[: len(prompt)] = prompt
        #: What the cache compares: the same array, unless an adapter sets in somewhere.
        self._filed = self._buffer
        self.request_id = request_id
        self.arrival = arrival
        self.fingerprint = fingerprint
        self.options = options
        self.adapter: Adapter | None = None
        self.adapted_from = 0
        self.item: ContentItem | None = None
        self.content: SequenceContent | None = None
        self.prompt_logprobs: PromptLogprobs | None = None
        self.state = SequenceState.QUEUED
        self.num_prompt_tokens = len(prompt)
        self.num_tokens = len(prompt)
        self.num_computed = 0
        self.num_restored = 0
        self.num_cached = 0
        self.counts_hits = True
        self.is_started = False
        self.lease: Lease | None = None
        self.lookup: Lookup | None = None
        self.lookup_version: tuple[int, int | None] | None = None
        self.wait: Wait | None = None
        self.last_step = 0
        self.queued_step = 0
        self.miss: MissReason | None = None

    def __repr__(self) -> str:
        return (
            f"Sequence({self.arrival}, {self.state.name}, "
            f"{self.num_computed} of {self.num_tokens} computed)"
        )

    @property
    def tokens(self) -> TokenIds:
        """All known tokens as they are filed, as a view; see ``token_ids``."""
        return self._filed[: self.num_tokens]

    @property
    def last_token(self) -> int:
        """The newest one."""
        return int(self._buffer[self.num_tokens - 1])

    @property
    def priority(self) -> int:
        return self.options.priority

    @property
    def tenant(self) -> str:
        return self.options.tenant

    @property
    def access(self) -> Access:
        return self.options.access if self.options.approval is None else APPROVING

    @property
    def max_num_tokens(self) -> int:
        """Tokens it must have room for at most: those it can come to have, and one."""
        return len(self._buffer)

    @property
    def hit_limit(self) -> int | None:
        """Leading tokens whose KV it may take from the cache; None for all."""
        return None if self.prompt_logprobs is None else self.prompt_logprobs.limit

    @property
    def held_lease(self) -> Lease:
        """The lease of a running sequence."""
        if self.lease is None:
            raise InvariantError(
                f"a {self.state.name} sequence was taken for a running one"
            )
        return self.lease

    @property
    def wants_token(self) -> bool:
        """Whether there is room for one more; a sequence made to warm has none."""
        return self.num_tokens < len(self._buffer) - 1

    @property
    def max_tokens(self) -> int:
        """Tokens of prompt and reply that it may come to have."""
        return len(self._buffer) - 1

    @property
    def has_reply(self) -> bool:
        """Whether a token of its reply is known, so that the rest must fit to it."""
        return self.num_tokens > self.num_prompt_tokens

    @property
    def is_of_begun_answer(self) -> bool:
        """Whether others of one answer were admitted: all have to be of one model."""
        joint = self.options.joint
        return joint is not None and joint.has_begun

    @property
    def is_bound(self) -> bool:
        """Whether its answer has something already that the rest must fit to."""
        joint = self.options.joint
        return self.has_reply or (joint is not None and joint.has_result)

    @property
    def num_ready(self) -> int:
        """Leading tokens with KV once the pending copy, if there is one, is done."""
        return max(self.num_computed, self.held_lease.num_hit_tokens)

    def token_ids(self, start: int, end: int) -> TokenIds:
        """Return the known tokens at positions ``start`` to ``end`` - 1, as a view."""
        return self._buffer[start:end]

    def num_logits(self, start: int, end: int, *, is_sampled: bool) -> int:
        """Return for how many of the tokens up to ``end`` a step needs logits."""
        kept = self.prompt_logprobs
        if kept is None or kept.is_complete or start + 1 >= self.num_prompt_tokens:
            return int(is_sampled)
        return end - start

    def adapt(self, adapter: Adapter, start: int, item: ContentItem | None) -> None:
        """Let tokens pass an adapter from a position of the prompt on.

        Args:
            adapter: The version it keeps.
            start: The position.
            item: What the cache gets in place of tokens from there on, if anything.
        """
        self.adapter, self.adapted_from, self.item = adapter, start, item
        if item is not None:
            self._filed = number_tokens(self._buffer, start, item)

    def append(self, token_id: int) -> None:
        """Add a sampled token."""
        self._buffer[self.num_tokens] = token_id
        if self.item is not None:
            self._filed[self.num_tokens] = self.item.first - token_id
        self.num_tokens += 1
        if self.options.joint is not None:
            self.options.joint.has_result = True

    def renew(self, fingerprint: Fingerprint) -> None:
        """Begin anew under another model: nothing it has met so far counts any more.

        Called only while it holds nothing and has no token of a reply.
        """
        self.fingerprint = fingerprint
        if self.prompt_logprobs is not None:
            width = self.prompt_logprobs.width
            self.prompt_logprobs = PromptLogprobs(self.num_prompt_tokens, width)
        self.num_restored = 0
        self.num_cached = 0
        self.counts_hits = True
        self.miss = None
        # Versions of two trees may be the same number, and mean nothing to each other.
        self.lookup = None
        self.lookup_version = None
        self.wait = None

    def branch(self, request_id: RequestId, arrival: int) -> Sequence:
        """Return a queued sequence with the same tokens, and room for as many more."""
        twin = Sequence(
            request_id,
            arrival,
            self._buffer[: self.num_prompt_tokens],
            max_tokens=len(self._buffer) - self.num_prompt_tokens - 1,
            fingerprint=self.fingerprint,
            options=self.options,
        )
        twin.content = self.content
        if self.prompt_logprobs is not None:
            twin.prompt_logprobs = self.prompt_logprobs.copy()
        twin._buffer[: self.num_tokens] = self._buffer[: self.num_tokens]
        twin.num_tokens = self.num_tokens
        if self.adapter is not None:
            twin.adapt(self.adapter, self.adapted_from, self.item)
        return twin
