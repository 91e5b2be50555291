"""Prompt mixer: images and embeddings in, mixed prompts out.

Who has images turns them into a mixed prompt with ``images``, which may take its time on
any thread; the engine does so for those that come as an ``ImagePrompt``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from prefold.engine.mixed_prompt import MixedPrompt, PromptEmbeds, mix_embeds
from prefold.errors import RequestError

#: Text in, token ids out.
EncodeText = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImagePrompt:
    """A text with images.

    Attributes:
        text: With the model's image placeholder, such as ``<image>``, once for each.
        images: PNG, JPEG, WebP or GIF files, in the order of their placeholders.
    """

    text: str = field(repr=False)
    images: Sequence[bytes] = field(repr=False)


class ImageReader(Protocol):
    """Makes prompts of texts with images for one model. May be used by several threads."""

    @property
    def placeholder(self) -> str | None:
        """What stands in a text for an image; None if the model takes none."""
        ...

    def read(
        self,
        text: str,
        images: Sequence[bytes],
        encode: EncodeText,
        scope: Hashable = None,
    ) -> MixedPrompt:
        """Return the prompt.

        Args:
            text: With a placeholder for each image.
            images: Files.
            encode: Makes token ids of the text.
            scope: Of whom it may show that a file was sent before: it is then read
                sooner.

        Raises:
            RequestError: An image cannot be used, or there are as many as placeholders
                not.
        """
        ...


class NoImages:
    """Stands in where a model takes no images, and says why."""

    __slots__ = ("_reason",)

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def placeholder(self) -> str | None:
        return None

    def read(
        self,
        text: str,
        images: Sequence[bytes],
        encode: EncodeText,
        scope: Hashable = None,
    ) -> MixedPrompt:
        """Refuse."""
        del text, images, encode, scope
        raise RequestError(self._reason)


class PromptMixer:
    """Reads what is not token ids alone, for one model.

    Args:
        images: Reads images.
        hidden_size: Numbers of an embedding.
        dtype: What the model computes with.
        check_embeddings: Raises ``RequestError`` if the model takes none; asked once.
    """

    __slots__ = ("_check_embeddings", "_dtype", "_hidden_size", "_is_checked", "images")

    def __init__(
        self,
        images: ImageReader,
        *,
        hidden_size: int,
        dtype: torch.dtype,
        check_embeddings: Callable[[], None],
    ) -> None:
        self.images = images
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._check_embeddings = check_embeddings
        self._is_checked = False

    def mix_images(self, prompt: ImagePrompt, encode: EncodeText | None) -> MixedPrompt:
        """Return a prompt with images; ``encode`` is None without a tokenizer.

        Raises:
            RequestError: As ``ImageReader.read``.
        """
        text: object = prompt.text
        files: Sequence[object] = prompt.images
        if not (isinstance(text, str) and all(isinstance(file, bytes) for file in files)):
            raise RequestError(
                "a prompt with images is a text and a list of files as bytes"
            )
        if encode is None:
            raise RequestError("without a tokenizer, prompts are lists of token ids")
        return self.images.read(prompt.text, prompt.images, encode)

    def mix_embeds(self, prompt: PromptEmbeds) -> MixedPrompt:
        """Return a prompt of embeddings. On the engine's thread, or before it begins.

        Raises:
            RequestError: They are not such as the model computes with.
        """
        if not self._is_checked:
            self._check_embeddings()
            self._is_checked = True
        return mix_embeds(prompt, self._hidden_size, self._dtype)
