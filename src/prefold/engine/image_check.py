"""Image check: may a model's images be served, and does it come out as its own forward?

Two questions, asked once at load with one small image:

1. Do positions of an image attend to later ones? Then a chunk or a hit that ends inside
   an image would have computed its first half without its second, so such models are
   refused. The masks that the model itself makes tell.
2. Are the logits those of the model's own eager attention, with the prompt cut inside
   the image? This finds models that give their decoder more of an image than vectors in
   place of embeddings, at positions that are counted in a way not known here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from prefold.engine.attention import ATTENTION_NAME
from prefold.engine.attention_parts import set_attention
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.images import DecodedImage
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel
from prefold.engine.mixed_prompt import MixedPrompt
from prefold.engine.model_runner import ModelRunner
from prefold.engine.self_check import TOLERANCE
from prefold.engine.sequence_content import SequenceContent
from prefold.engine.vision_model import TowerImage, VisionModel
from prefold.errors import ConfigError, InvariantError, RequestError, UnusableStepError

#: The name under which transformers finds ``_note_mask``.
_NOTING_NAME = "prefold-masks"

#: Height and width of the image; no square, so that axes cannot be mixed up.
_SIZE = (48, 80)

_BLOCK_SIZE = 16

#: Keywords by which forward passes are told which tokens are an image's.
_TYPE_KEYWORDS = ("mm_token_type_ids", "token_type_ids")


class MaskSite:
    """Attention that looks at its masks and answers zeros.

    Attributes:
        num_masks: How many it was shown.
        looks_ahead: Whether one lets a row see a later one.
    """

    __slots__ = ("looks_ahead", "num_masks")

    def __init__(self) -> None:
        self.num_masks = 0
        self.looks_ahead = False

    def note(self, mask: torch.Tensor) -> None:
        is_seen = mask if mask.dtype == torch.bool else mask == 0
        self.num_masks += 1
        self.looks_ahead |= bool(torch.triu(is_seen, diagonal=1).any())


def check_images(loaded: LoadedModel, vision: VisionModel) -> None:
    """Refuse a model whose images would be served wrongly.

    Raises:
        ConfigError: One sentence with the model type and the reason.
    """
    name = loaded.model.config.model_type
    try:
        prompt = _make_prompt(loaded, vision)
        looks_ahead = find_looking_ahead(loaded, vision, prompt)
    except (RequestError, TypeError) as error:
        raise ConfigError(
            f"models of type {name} cannot be served: their images are not understood "
            f"here ({type(error).__name__})"
        ) from error
    if looks_ahead:
        raise ConfigError(
            f"models of type {name} cannot be served: the positions of an image attend to "
            "each other in both directions, so an image that is cut by a chunk or by the "
            "end of a cached prefix would be computed wrongly"
        )
    difference = measure_image_difference(loaded, vision, _make_prompt(loaded, vision))
    limit = TOLERANCE[loaded.dtype]
    if not difference <= limit:  # a NaN is not below it either
        raise ConfigError(
            f"models of type {name} cannot be served: with an image, the logits differ "
            f"from those of its own attention by {difference:.1e} of the largest, more "
            f"than {limit:.0e}"
        )


def find_looking_ahead(
    loaded: LoadedModel, vision: VisionModel, prompt: MixedPrompt
) -> bool:
    """Tell whether the model's masks let a position see a later one."""
    AttentionInterface.register(_NOTING_NAME, _note_mask)
    AttentionMaskInterface.register(_NOTING_NAME, _whole_mask)
    site = MaskSite()
    set_attention(loaded.model, _NOTING_NAME)
    try:
        _run_own(loaded, vision, prompt, attention_site=site)
    finally:
        set_attention(loaded.model, ATTENTION_NAME)
    if not site.num_masks:
        raise InvariantError("a model's masks were not seen")
    return site.looks_ahead


def measure_image_difference(
    loaded: LoadedModel, vision: VisionModel, prompt: MixedPrompt
) -> float:
    """Return the largest difference from eager, as a share of the largest logit.

    NaN where either has results that are not numbers.
    """
    # First: it needs the image's patches, which computing its vectors gives up.
    set_attention(loaded.model, "eager")
    try:
        theirs = _run_own(loaded, vision, prompt)
    finally:
        set_attention(loaded.model, ATTENTION_NAME)
    try:
        ours = _run_packed(loaded, prompt)
    except UnusableStepError:
        return math.nan
    scale = max(float(theirs.abs().max()), 1.0)
    return float((ours - theirs).abs().max()) / scale


def _make_prompt(loaded: LoadedModel, vision: VisionModel) -> MixedPrompt:
    shape = (*_SIZE, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    image = DecodedImage(picture=Image.fromarray(pixels), pixels=pixels)
    text = f"a b {vision.placeholder} c d"
    prompt = vision.prepare(text, [image], loaded.tokenizer.encode)
    if len(prompt) > loaded.max_model_len:
        raise ConfigError(
            f"max_model_len {loaded.max_model_len} leaves no room for the {len(prompt)} "
            "tokens of a small image; raise it"
        )
    return prompt


@torch.inference_mode()
def _run_own(
    loaded: LoadedModel, vision: VisionModel, prompt: MixedPrompt, **keywords: object
) -> torch.Tensor:
    """Return the logits of the model's own forward pass, image included."""
    model, device = loaded.model, loaded.device
    token_ids = torch.from_numpy(prompt.token_ids).to(device)[None]
    accepted = inspect.signature(model.forward).parameters
    is_image = (token_ids == vision.token_id).long()
    types = {name: is_image for name in _TYPE_KEYWORDS if name in accepted}
    [source] = prompt.sources.values()
    if not isinstance(source, TowerImage):
        raise InvariantError("an image without patches")
    inputs: Mapping[str, torch.Tensor] = source.inputs
    output = model(
        input_ids=token_ids,
        position_ids=_positions(loaded, prompt),
        use_cache=False,
        **{name: value.to(device) for name, value in inputs.items()},
        **types,
        **keywords,
    )
    logits: torch.Tensor = output.logits[0].float()
    return logits


def _positions(loaded: LoadedModel, prompt: MixedPrompt) -> torch.Tensor | None:
    """Return positions with the offset; None lets the model count them, without one."""
    if loaded.position_offset == 0:
        return None
    places = prompt.positions
    if places is None:
        places = np.arange(len(prompt), dtype=np.int64)[None]
    given = torch.from_numpy(places + loaded.position_offset).to(loaded.device)[:, None]
    return given[0] if len(given) == 1 else given


def _run_packed(loaded: LoadedModel, prompt: MixedPrompt) -> torch.Tensor:
    num_blocks = -(-len(prompt) // _BLOCK_SIZE)
    store = KvStore(
        loaded.layout(_BLOCK_SIZE, loaded.dtype),
        num_blocks,
        dtype=loaded.dtype,
        device=loaded.device,
    )
    runner = ModelRunner(loaded, store)
    content = SequenceContent(prompt, [])
    span = prompt.spans[0]
    cut = span.start + max((span.end - span.start) // 2, 1)
    rows = []
    for start, end in ((0, cut), (cut, len(prompt))):
        token_ids = prompt.token_ids[start:end]
        piece = SequenceSlice(
            token_ids=token_ids,
            start=start,
            block_ids=np.arange(num_blocks, dtype=np.int32),
            num_logits=end - start,
            content=content.cut(token_ids, start, end),
        )
        rows.append(runner.execute(StepPlan(slices=(piece,))))
    return torch.cat(rows)


def _note_mask(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **keywords: object,
) -> tuple[torch.Tensor, None]:
    del module, key
    site = keywords.get("attention_site")
    if not isinstance(site, MaskSite):
        raise InvariantError("masks are noted in the check of images only")
    if attention_mask is not None:
        site.note(attention_mask)
    _, heads, rows, _ = query.shape
    return value.new_zeros(1, rows, heads, value.shape[-1]), None


def _whole_mask(**keywords: object) -> torch.Tensor | None:
    # Written out also where it is the plain causal one.
    changed = {**keywords, "allow_is_causal_skip": False}
    # Handed through as they came, whatever their types.
    return sdpa_mask(**changed)  # type: ignore[arg-type]
