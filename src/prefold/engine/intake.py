"""Intake: reads and checks requests, and makes the sequence and the reply of one."""

from __future__ import annotations

from prefold.engine.admission import check_capacity
from prefold.engine.config import ModelLimits, RequestOptions
from prefold.engine.detokenizer import Detokenizer, TextStream
from prefold.engine.mixed_prompt import MixedPrompt, PromptEmbeds
from prefold.engine.parts import EngineParts
from prefold.engine.prompt import Prompt, encode_prompt
from prefold.engine.prompt_mixer import ImagePrompt, PromptMixer
from prefold.engine.read_prompt import ReadPrompt, read_mixed
from prefold.engine.reply import Reply
from prefold.engine.request import RequestId, SamplingParams
from prefold.engine.sequence import Sequence
from prefold.engine.sidecar import PromptLogprobs
from prefold.errors import RequestError
from prefold.identity.domain import Domain


class Intake:
    """Numbers requests and opens their replies, keeping nothing. Owned by the engine.

    Args:
        parts: The engine's.
        limits: The model's.
        sidecar_width: Alternatives that are kept of a prompt's tokens.
    """

    __slots__ = ("_detokenizer", "_limits", "_parts", "_sidecar_width")

    def __init__(self, parts: EngineParts, limits: ModelLimits, sidecar_width: int) -> None:
        self._parts = parts
        self._limits = limits
        self._sidecar_width = sidecar_width
        tokenizer = parts.tokenizer
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)

    def read(self, prompt: Prompt) -> ReadPrompt:
        """Return what a prompt's positions hold.

        Raises:
            RequestError: As ``encode_prompt``, or its images or embeddings cannot be used.
        """
        encoder = self._parts.tokenizer
        if isinstance(prompt, ImagePrompt):
            encode = None if encoder is None else encoder.encode
            prompt = self._mixer().mix_images(prompt, encode)
        elif isinstance(prompt, PromptEmbeds):
            prompt = self._mixer().mix_embeds(prompt)
        if isinstance(prompt, MixedPrompt):
            return read_mixed(prompt, self._parts.cache.keys.contents, self._limits)
        return ReadPrompt(token_ids=encode_prompt(prompt, encoder, self._limits))

    def _mixer(self) -> PromptMixer:
        if self._parts.mixer is None:
            raise RequestError("this engine takes token ids only")
        return self._parts.mixer

    def fit(self, prompt: ReadPrompt, params: SamplingParams | None, domain: Domain) -> int:
        """Return how many tokens the reply may have; none where it is not wanted.

        Raises:
            RequestError: The memory can never hold it, or it wants what there is not.
        """
        room = self._limits.max_model_len - len(prompt)
        max_tokens = 0 if params is None else min(params.max_tokens, room)
        check_capacity(self._parts.cache, domain, len(prompt), max_tokens)
        wants_logprobs = params is not None and params.prompt_logprobs is not None
        if wants_logprobs and prompt.content is not None:
            raise RequestError(
                "images and embeddings are no tokens with a probability; leave "
                "prompt_logprobs out"
            )
        return max_tokens

    def open(
        self,
        arrival: int,
        prompt: ReadPrompt,
        params: SamplingParams,
        max_tokens: int,
        options: RequestOptions,
    ) -> Reply:
        """Return a new reply with its queued sequence.

        Raises:
            RequestError: A bias is for a token outside the vocabulary.
        """
        parts, token_ids = self._parts, prompt.token_ids
        sampler_state = parts.sampler.start(
            params, token_ids[token_ids >= 0], fallback_seed=parts.entropy()
        )
        sequence = Sequence(
            request_id_of(arrival),
            arrival,
            token_ids,
            max_tokens=max_tokens,
            fingerprint=parts.fingerprint,
            options=options,
        )
        sequence.content = prompt.content
        if params.prompt_logprobs is not None:
            known = PromptLogprobs(len(token_ids), self._sidecar_width)
            sequence.prompt_logprobs = known
        return Reply(
            sequence,
            sampler_state,
            self._start_text(params),
            stop_ids=self._stop_ids(params),
            now=parts.clock(),
        )

    def renew(self, reply: Reply) -> None:
        """Let a request that another intake took in, and has no token, be as of this one.

        Both have the same vocabulary.
        """
        reply.sequence.renew(self._parts.fingerprint)
        reply.renew(self._start_text(reply.params), self._stop_ids(reply.params))

    def _start_text(self, params: SamplingParams) -> TextStream | None:
        if self._detokenizer is None:
            return None
        return self._detokenizer.start(frozenset(params.stop_token_ids))

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        stop_ids = frozenset(params.stop_token_ids)
        return stop_ids if params.ignore_eos else stop_ids | self._limits.eos_token_ids


def request_id_of(arrival: int) -> RequestId:
    """Return the id of the request with this number in the order of arrival."""
    return RequestId(f"request-{arrival}")
