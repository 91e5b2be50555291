"""Images through the engine: right, exact, and shared only where they are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from prefold.engine import vision_model
from prefold.engine.attention import ATTENTION_NAME
from prefold.engine.attention_parts import set_attention
from prefold.engine.config import SchedulerConfig
from prefold.engine.image_limits import ImageLimits
from prefold.engine.images import DecodedImage, read_image
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.engine.mixed_prompt import MixedPrompt
from prefold.engine.prompt_mixer import ImagePrompt, PromptMixer
from prefold.engine.vision_loading import make_mixer
from prefold.engine.vision_model import TowerImage
from prefold.errors import RequestError
from support.tiny_engines import COLD, TinyEngine, assert_equal_outputs, greedy
from support.tiny_vision import (
    make_pixels,
    make_png,
    save_idefics3,
    save_qwen2_5_vl,
    to_png,
)

pytestmark = pytest.mark.e2e

BLOCK = 4


@dataclass(frozen=True)
class Family:
    """A loaded model, and what stands in a text for an image."""

    loaded: LoadedModel
    mixer: PromptMixer
    image: str
    directory: Path

    def prompt(self, text: str, images: Sequence[bytes]) -> ImagePrompt:
        return ImagePrompt(text=text.replace("[]", self.image), images=images)

    def read(self, text: str, images: Sequence[bytes]) -> MixedPrompt:
        prompt = self.prompt(text, images)
        return self.mixer.mix_images(prompt, self.loaded.tokenizer.encode)

    def engine(
        self, num_blocks: int = 64, scheduler: SchedulerConfig | None = None
    ) -> TinyEngine:
        return TinyEngine(
            self.loaded,
            num_blocks=num_blocks,
            block_size=BLOCK,
            scheduler=scheduler,
            has_tokenizer=True,
            mixer=self.mixer,
        )


@pytest.fixture(scope="module", params=["idefics3", "qwen2_5_vl"])
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Family:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "idefics3":
        save_idefics3(directory, longest_edge=32)
        image = "<image>"
    else:
        save_qwen2_5_vl(directory)
        image = "<|vision_start|><|image_pad|><|vision_end|>"
    loaded = load_model(directory, LoadOptions())
    mixer = make_mixer(loaded, directory, ImageLimits())
    return Family(loaded=loaded, mixer=mixer, image=image, directory=directory)


SYSTEM = "say what is on it. "
TWO = SYSTEM + "first [] then [] and now"


def images(*seeds: int) -> list[bytes]:
    return [make_png(seed, 24, 16) for seed in seeds]


# -- right -------------------------------------------------------------------------


@torch.inference_mode()
def own_logits(family: Family, prompt: MixedPrompt, reply: Sequence[int]) -> torch.Tensor:
    """Return the logits of the model's own eager forward pass over prompt and reply."""
    model = family.loaded.model
    token_ids = torch.tensor([[*prompt.token_ids.tolist(), *reply]])
    reader = family.mixer.images
    is_image = torch.zeros_like(token_ids)
    for span in prompt.spans:
        is_image[0, span.start : span.end] = 1
    inputs: dict[str, list[torch.Tensor]] = {}
    for source in prompt.sources.values():
        assert isinstance(source, TowerImage)
        for name, value in source.inputs.items():
            inputs.setdefault(name, []).append(value)
    # Idefics3 has an axis of prompts before that of images.
    joined = {
        name: torch.cat(values, dim=int(values[0].ndim >= 4 and values[0].shape[0] == 1))
        for name, values in inputs.items()
    }
    types = {"mm_token_type_ids": is_image} if prompt.positions is not None else {}
    assert reader.placeholder is not None
    set_attention(model, "eager")
    try:
        output = model(input_ids=token_ids, use_cache=False, **joined, **types)
    finally:
        set_attention(model, ATTENTION_NAME)
    logits: torch.Tensor = output.logits[0].float()
    return logits


def test_replies_are_those_of_the_models_own_forward_pass(family: Family) -> None:
    prompt = family.read(TWO, images(1, 2))
    untouched = family.read(TWO, images(1, 2))
    # The model's own pass would take a placeholder in the reply for an image.
    banned = int(prompt.token_ids[prompt.spans[0].start])
    params = greedy(4, logit_bias=((banned, -100.0),))
    output = family.engine().run(prompt, params)
    assert output.logits is not None
    own = own_logits(family, untouched, output.token_ids[:-1])[-4:]
    assert torch.allclose(output.logits, own, atol=1e-4 * float(own.abs().max()), rtol=0)


def test_other_pictures_give_other_replies(family: Family) -> None:
    # Otherwise nothing here would show anything.
    one = family.engine().run(family.prompt(TWO, images(1, 2)))
    other = family.engine().run(family.prompt(TWO, images(1, 3)))
    assert one.logits is not None
    assert other.logits is not None
    assert not torch.allclose(one.logits[0], other.logits[0], atol=1e-2)


# -- exact -------------------------------------------------------------------------


def test_warm_chunked_batched_and_preempted_have_the_bits_of_cold(family: Family) -> None:
    prompt = family.prompt(TWO, images(1, 2))
    length = len(family.read(TWO, images(1, 2)))
    reference = family.engine().run(prompt, greedy(3), COLD)

    engine = family.engine()
    first = engine.run(prompt, greedy(3))
    warm = engine.run(prompt, greedy(3))
    assert_equal_outputs(first, reference)
    assert_equal_outputs(warm, reference)
    assert warm.usage.cached_tokens >= length - BLOCK
    engine.assert_nothing_is_held()

    # Every cut inside an image, and before and after it, is one of some chunk size.
    for chunk in (5, 6, 7):
        scheduler = SchedulerConfig(max_step_tokens=chunk, max_running=1)
        assert_equal_outputs(
            family.engine(scheduler=scheduler).run(prompt, greedy(3)), reference
        )

    batch = family.engine().generate(
        ["only text, of some length", prompt, [1, 2, 3], prompt], greedy(3)
    )
    assert_equal_outputs(batch[1], reference)
    assert_equal_outputs(batch[3], reference)
    text = family.engine().run("only text, of some length", greedy(3))
    assert_equal_outputs(batch[0], text)

    # Room for one and a half: the younger one gives its blocks back in between.
    small = family.engine(
        num_blocks=-(-length // BLOCK) + 8,
        scheduler=SchedulerConfig(max_step_tokens=40, max_running=2),
    )
    other = family.prompt("x" + TWO, images(3, 4))
    outputs = small.generate([prompt, other], greedy(9))
    long = family.engine().run(prompt, greedy(9), COLD)
    assert_equal_outputs(outputs[0], long)
    assert_equal_outputs(outputs[1], family.engine().run(other, greedy(9), COLD))
    assert small.counters.num_preemptions > 0


def test_a_hit_may_end_at_every_block_of_an_image(family: Family) -> None:
    prompt = family.read(TWO, images(1, 2))
    reference = family.engine().run(prompt, greedy(2), COLD)
    found = set()
    scheduler = SchedulerConfig(max_step_tokens=BLOCK, max_running=1)
    for num_steps in range(prompt.spans[0].start // BLOCK, prompt.spans[-1].end // BLOCK):
        engine = family.engine(scheduler=scheduler)
        request_id = engine.submit(prompt, greedy(1))
        for _ in range(num_steps):
            engine.step()
        engine.abort(request_id)
        engine.step()
        output = engine.run(prompt, greedy(2))
        assert_equal_outputs(output, reference)
        found.add(output.usage.cached_tokens)
    inside = {end for end in found if any(s.start < end < s.end for s in prompt.spans)}
    assert inside


def test_a_forks_images_are_its_parents(family: Family) -> None:
    engine = family.engine()
    prompt = family.prompt(TWO, images(1, 2))
    first = engine.submit(prompt, greedy(3))
    twins = engine.fork(first, 1)
    outputs = {}
    while engine.num_open:
        outputs.update({output.request_id: output for output in engine.step()})
    assert_equal_outputs(outputs[first], outputs[twins[0]])


def test_the_tower_runs_only_for_images_that_miss(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[TowerImage] = []
    rows = TowerImage.rows

    def watched(self: TowerImage) -> torch.Tensor:
        ran.append(self)
        return rows(self)

    monkeypatch.setattr(TowerImage, "rows", watched)
    engine = family.engine()
    engine.run(family.prompt(TWO + " one", images(1, 2)))
    assert len(set(ran)) == 2
    ran.clear()
    engine.run(family.prompt(TWO + " two", images(1, 2)))
    assert not ran
    engine.run(family.prompt(TWO + " two", images(1, 3)))
    assert len(set(ran)) == 1


def test_a_file_that_was_sent_before_is_decoded_once_in_its_scope_only(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def watched(file: bytes, limits: ImageLimits) -> DecodedImage:
        decoded.append(file)
        return read_image(file, limits)

    monkeypatch.setattr(vision_model, "read_image", watched)
    reader = make_mixer(family.loaded, family.directory, ImageLimits()).images
    text, files = family.prompt("[]", images(1)).text, images(1)
    decoded.clear()
    encode = family.loaded.tokenizer.encode
    first, again, other = (
        reader.read(text, files, encode, scope) for scope in ("acme", "acme", "other")
    )
    assert len(decoded) == 2
    assert first.spans == again.spans == other.spans
    [one], [two] = first.sources.values(), again.sources.values()
    assert torch.equal(one.rows(), two.rows())


# -- shared ------------------------------------------------------------------------


def hits(family: Family, before: ImagePrompt, after: ImagePrompt) -> tuple[int, bool]:
    """Return what the second prompt hits, having proved that its reply is right."""
    engine = family.engine()
    engine.run(before, greedy(1))
    output = engine.run(after, greedy(2))
    assert_equal_outputs(output, family.engine().run(after, greedy(2), COLD))
    engine.assert_nothing_is_held()
    return output.usage.cached_tokens, output.usage.cached_tokens > 0


def first_image(family: Family, text: str, files: Sequence[bytes], number: int = 0) -> int:
    """Return the position of an image's first vector."""
    spans = family.read(text, files).spans
    return [span.start for span in spans if span.offset == 0][number]


def test_pictures_share_what_comes_before_the_first_that_differs(family: Family) -> None:
    one = family.prompt(TWO, images(1, 2))
    length = len(family.read(TWO, images(1, 2)))
    cases = {
        "same": (TWO, images(1, 2), length - 1),
        "second differs": (TWO, images(1, 3), first_image(family, TWO, images(1, 2), 1)),
        "first differs": (TWO, images(3, 2), first_image(family, TWO, images(1, 2))),
        "swapped": (TWO, images(2, 1), first_image(family, TWO, images(1, 2))),
        "both the first": (TWO, images(1, 1), first_image(family, TWO, images(1, 2), 1)),
    }
    for name, (text, files, limit) in cases.items():
        found, _ = hits(family, one, family.prompt(text, files))
        # All whole blocks, and of the one after, what agrees in four tokens or more.
        assert limit - BLOCK <= found <= limit, name


def test_the_same_picture_at_another_place_is_another_key(family: Family) -> None:
    text = "a [] b"
    shifted = "c a [] b"
    found, _ = hits(
        family, family.prompt(text, images(1)), family.prompt(shifted, images(1))
    )
    assert found == 0


def test_other_neighbours_of_a_placeholder_share_nothing_behind_them(
    family: Family,
) -> None:
    before = family.prompt(SYSTEM + "one [] end", images(1))
    after = family.prompt(SYSTEM + "two [] end", images(1))
    found, is_hit = hits(family, before, after)
    assert is_hit
    assert found <= len(family.loaded.tokenizer.encode(SYSTEM)) + 1


def test_pictures_that_look_alike_to_bytes_are_told_apart(family: Family) -> None:
    pixels = make_pixels(5, 16, 32)
    grey = make_pixels(6, 16, 16, channels=0)
    palettes = [
        np.random.default_rng(seed).integers(0, 256, 768).tolist() for seed in (1, 2)
    ]
    indexed = []
    for palette in palettes:
        picture = Image.fromarray(grey, mode=None).convert("L").copy()
        picture = Image.frombytes("P", picture.size, picture.tobytes())
        picture.putpalette(palette)
        indexed.append(to_png(picture))
    clear = np.dstack((make_pixels(7), np.full((16, 16), 10, np.uint8)))
    solid = np.dstack((make_pixels(7), np.full((16, 16), 255, np.uint8)))
    groups = [
        [to_png(Image.fromarray(p)) for p in (pixels, pixels.reshape(32, 16, 3))],
        [*indexed, to_png(Image.fromarray(grey))],
        [to_png(Image.fromarray(p)) for p in (clear, solid)],
    ]
    text = SYSTEM + "look: [] what is it"
    for group in groups:
        digests = {family.read(text, [file]).spans[0].digest for file in group}
        assert len(digests) == len(group)
        for one, other in pairwise(group):
            limit = first_image(family, text, [other])
            found, is_hit = hits(
                family, family.prompt(text, [one]), family.prompt(text, [other])
            )
            assert is_hit
            assert found <= limit


def test_other_options_of_the_processor_are_another_key(family: Family) -> None:
    reader = make_mixer(family.loaded, family.directory, ImageLimits()).images
    processor = reader._processor.image_processor  # type: ignore[attr-defined]
    processor.image_mean = [0.4, 0.5, 0.6]
    changed = type(reader)(family.loaded.model, reader._processor, ImageLimits())  # type: ignore[attr-defined, call-arg]
    text = family.prompt(TWO, images(1, 2)).text
    encode = family.loaded.tokenizer.encode
    mine, theirs = (
        it.read(text, images(1, 2), encode) for it in (family.mixer.images, changed)
    )
    engine = family.engine()
    engine.run(mine, greedy(1))
    output = engine.run(theirs, greedy(2))
    cold = family.engine().run(changed.read(text, images(1, 2), encode), greedy(2), COLD)
    assert_equal_outputs(output, cold)
    assert 0 < output.usage.cached_tokens <= mine.spans[0].start


def test_text_alone_is_shared_with_prompts_that_have_images(family: Family) -> None:
    engine = family.engine()
    engine.run(SYSTEM, greedy(1))
    output = engine.run(family.prompt(TWO, images(1, 2)))
    assert output.usage.cached_tokens >= len(family.loaded.tokenizer.encode(SYSTEM)) - BLOCK


# -- refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "files", "message"),
    [
        ("no place", images(1), "0 image placeholders for 1 images"),
        ("[] and []", images(1), "2 image placeholders for 1 images"),
        ("[]", [b"no image"], "cannot be read"),
        ("[]" * 9, images(*range(9)), "may have 8 images, got 9"),
    ],
)
def test_what_is_no_prompt_of_images_is_refused_and_harms_nothing(
    family: Family, text: str, files: list[bytes], message: str
) -> None:
    engine = family.engine()
    with pytest.raises(RequestError, match=message):
        engine.submit(family.prompt(text, files))
    with pytest.raises(RequestError, match="prompt_logprobs"):
        engine.submit(family.prompt("[]", images(1)), greedy(1, prompt_logprobs=0))
    engine.assert_nothing_is_held()
    assert engine.run(family.prompt("[]", images(1))).error is None
