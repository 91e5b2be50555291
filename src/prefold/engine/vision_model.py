"""Vision model: images for one model, from pixels to the vectors of its positions.

::

    text, files -> pixels -> processor: placeholders written out, patches, grid
                                 |
                 prompt: token ids, a span of each image's digest, positions
                                 |
    step        -> the image tower, one image alone, only if some of its positions miss

An image's digest is that of its pixels, its mode and palette, everything the processor
was told and what it made of the size. What the tower gives for it therefore depends on
nothing else: not on the other images, nor on the batch.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from prefold.blocks.table import TOKEN_DTYPE, TokenIds
from prefold.engine.image_limits import ImageLimits
from prefold.engine.image_processors import ImageHalf
from prefold.engine.images import DecodedImage, check_number, read_image
from prefold.engine.known_images import KnownImage, KnownImages
from prefold.engine.mixed_prompt import ContentSource, MixedPrompt
from prefold.engine.prompt_mixer import EncodeText
from prefold.errors import RequestError
from prefold.identity.content import ContentSpan
from prefold.identity.encoding import Field, digest

#: What processors raise for images they cannot use, such as ones that are far too long.
_PROCESSOR_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)

#: The keyword of a grid of patches; ``get_rope_index`` takes it.
_GRID = "image_grid_thw"


#: Makes an image's patches, or has them at hand.
MakePatches = Callable[[], Mapping[str, torch.Tensor]]


class TowerImage:
    """One image's vectors, computed when they are first needed."""

    __slots__ = ("_make_patches", "_model", "_rows")

    def __init__(self, model: PreTrainedModel, make_patches: MakePatches) -> None:
        self._model = model
        self._make_patches: MakePatches | None = make_patches
        self._rows: torch.Tensor | None = None

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """What the tower is given; nothing once the vectors are there."""
        return {} if self._make_patches is None else self._make_patches()

    def rows(self) -> torch.Tensor:
        if self._rows is None:
            self._rows = run_tower(self._model, self.inputs)
            self._make_patches = None
        return self._rows


@torch.inference_mode()
def run_tower(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the vectors of one image, ``[positions, hidden]``."""
    features = _tower_of(model)(
        **{name: value.to(model.device) for name, value in inputs.items()}
    )
    pooled: torch.Tensor | Sequence[torch.Tensor] = vars(features)["pooler_output"]
    parts = [pooled] if isinstance(pooled, torch.Tensor) else list(pooled)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _tower_of(model: PreTrainedModel) -> Callable[..., object]:
    # A module's attributes are tensors or modules, mypy believes.
    return model.get_image_features  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Prepared:
    """One image, ready for the tower.

    Attributes:
        text: What takes the place of its placeholder.
        grid: Of its patches, ``[1, 3]``, where the model counts positions by it.
        make_patches: Of the tower.
    """

    digest: bytes
    text: str = field(repr=False)
    grid: torch.Tensor | None
    make_patches: MakePatches = field(repr=False)


class VisionModel:
    """Reads the images of one model. May be used by several threads.

    Args:
        model: On its device; its tower is run by the engine's thread.
        processor: The model's own.
        limits: Of a request's images.
    """

    __slots__ = (
        *("_filler", "_keywords", "_known", "_limits", "_lock", "_model", "_options"),
        *("_processor", "token_id"),
    )

    def __init__(
        self, model: PreTrainedModel, processor: ImageHalf, limits: ImageLimits
    ) -> None:
        self._model = model
        self._processor = processor
        self._limits = limits
        accepted = inspect.signature(_tower_of(model)).parameters
        self._keywords = frozenset(accepted) - {"kwargs"}
        self._options = digest("image-processor", _settings_of(processor))
        # Processors are not said to be safe for several threads.
        self._lock = threading.Lock()
        self._known = KnownImages()
        #: The token at an image's positions; not always that of its placeholder.
        self.token_id = _filling_id(model.config, processor)
        self._filler = str(processor.tokenizer.convert_ids_to_tokens(self.token_id))

    @property
    def placeholder(self) -> str:
        return self._processor.image_token

    def read(
        self,
        text: str,
        images: Sequence[bytes],
        encode: EncodeText,
        scope: Hashable = None,
    ) -> MixedPrompt:
        """Return the prompt of a text with images.

        Raises:
            RequestError: An image cannot be used, or there are as many as placeholders
                not.
        """
        check_number(len(images), self._limits)
        prepared = [self._read_file(file, scope) for file in images]
        return self._assemble(text, prepared, encode)

    def prepare(
        self, text: str, images: Sequence[DecodedImage], encode: EncodeText
    ) -> MixedPrompt:
        """Return the prompt of a text with decoded images.

        Raises:
            RequestError: As ``read``.
        """
        return self._assemble(text, [self._prepare(image) for image in images], encode)

    def _read_file(self, file: bytes, scope: Hashable) -> _Prepared:
        """Return an image, without decoding one that was read before in its scope."""
        key = (scope, digest("image-file", file))
        known = self._known.find(key)
        if known is None:
            prepared = self._prepare(read_image(file, self._limits))
            known = KnownImage(
                digest=prepared.digest, text=prepared.text, grid=prepared.grid
            )
            self._known.add(key, known)
            return prepared
        return _Prepared(
            digest=known.digest,
            text=known.text,
            grid=known.grid,
            # Only if its KV is gone: then it is decoded again.
            make_patches=lambda: self._prepare(
                read_image(file, self._limits)
            ).make_patches(),
        )

    def _assemble(
        self, text: str, prepared: Sequence[_Prepared], encode: EncodeText
    ) -> MixedPrompt:
        pieces = text.split(self.placeholder)
        if len(pieces) - 1 != len(prepared):
            raise RequestError(
                f"the prompt has {len(pieces) - 1} image placeholders for {len(prepared)} "
                "images; leave the placeholder out of texts, and give one for each image"
            )
        written = [*(image.text for image in prepared), ""]
        whole = "".join(part for pair in zip(pieces, written, strict=True) for part in pair)
        token_ids = np.array(encode(whole), dtype=TOKEN_DTYPE)
        lengths = [image.text.count(self._filler) for image in prepared]
        spans = self._spans(token_ids, prepared, lengths)
        sources: dict[bytes, ContentSource] = {
            image.digest: TowerImage(self._model, image.make_patches) for image in prepared
        }
        return MixedPrompt(
            token_ids=token_ids,
            spans=spans,
            sources=sources,
            positions=self._positions(token_ids, prepared),
        )

    def _prepare(self, image: DecodedImage) -> _Prepared:
        try:
            with self._lock:
                found = self._processor.image_processor(
                    images=[[image.as_rgb()]],
                    return_tensors="pt",
                    **getattr(self._processor, "images_kwargs", {}),
                )
                text = self._processor.replace_image_token(found, image_idx=0)
        except _PROCESSOR_FAULTS as error:
            raise RequestError(
                "an image cannot be used by this model: send one of another size or shape"
            ) from error
        inputs = {name: found[name] for name in self._keywords if name in found}
        shapes: tuple[Field, ...] = tuple(
            (name, tuple(value.shape)) for name, value in sorted(inputs.items())
        )
        options: tuple[Field, ...] = (self._options, text, shapes)
        return _Prepared(
            digest=image.digest(options),
            text=text,
            grid=inputs.get(_GRID),
            make_patches=lambda: inputs,
        )

    def _spans(
        self, token_ids: TokenIds, images: Sequence[_Prepared], lengths: Sequence[int]
    ) -> tuple[ContentSpan, ...]:
        places = np.flatnonzero(token_ids == self.token_id)
        if len(places) != sum(lengths):
            raise RequestError(
                "the prompt's tokens have other image placeholders than its images fill; "
                "leave the placeholder out of texts"
            )
        spans: list[ContentSpan] = []
        done = 0
        for image, length in zip(images, lengths, strict=True):
            own = places[done : done + length]
            done += length
            breaks = np.flatnonzero(np.diff(own) != 1) + 1
            offset = 0
            for run in np.split(own, breaks):
                start, end = int(run[0]), int(run[-1]) + 1
                spans.append(ContentSpan(start, end, image.digest, offset))
                offset += len(run)
        return tuple(spans)

    def _positions(
        self, token_ids: TokenIds, images: Sequence[_Prepared]
    ) -> npt.NDArray[np.int64] | None:
        """Return the positions along several axes, for models that have such."""
        find = getattr(self._model.base_model, "get_rope_index", None)
        if find is None:
            return None
        is_image = token_ids == self.token_id
        num_runs = int(np.count_nonzero(np.diff(is_image, prepend=False) & is_image))
        if num_runs != len(images):
            raise RequestError(
                "two images stand side by side without a token between them; the model's "
                "chat template puts some there"
            )
        grids = [image.grid for image in images if image.grid is not None]
        positions, _ = find(
            input_ids=torch.from_numpy(token_ids)[None],
            mm_token_type_ids=torch.from_numpy(is_image.astype(np.int64))[None],
            **({_GRID: torch.cat(grids)} if grids else {}),
        )
        found: npt.NDArray[np.int64] = positions[:, 0].cpu().numpy()
        return found


def _filling_id(config: PreTrainedConfig, processor: ImageHalf) -> int:
    entries = config.to_dict()
    # ``image_token_index`` is what older families call it.
    for name in ("image_token_id", "image_token_index"):
        if isinstance(entries.get(name), int):
            return int(entries[name])
    return processor.image_token_id


def _settings_of(processor: ImageHalf) -> str:
    """Return everything that a processor is told, written down."""
    entries = {
        "class": type(processor).__name__,
        "images": processor.image_processor.to_dict(),
        "keywords": getattr(processor, "images_kwargs", {}),
        # Such as how many positions an image fills.
        "own": {
            name: value
            for name, value in vars(processor).items()
            if isinstance(value, str | int | float | bool)
        },
    }
    return json.dumps(entries, sort_keys=True, default=repr)
