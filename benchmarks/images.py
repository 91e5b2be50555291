"""Images: what one costs a request that hits, beside the same request without.

A model of random weights answers prompts of equal length: one all text, one with an image
in it. Both were sent before, so both hit all but their last block; what the image adds is
reading its file, turning it into patches and digesting it, since its tower does not run.
Each round measures each kind once, in turn, so that what the machine does besides meets all
of them alike.

``read`` is reading the file alone, ``cold`` the first time, tower included.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Idefics3Config,
    Idefics3Processor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.auto import AutoModelForImageTextToText
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
)

from prefold.cache import NO_CACHE
from prefold.engine.assembly import Silence, assemble
from prefold.engine.config import RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.model_settings import ModelSettings
from prefold.engine.prompt import Prompt
from prefold.engine.prompt_mixer import ImagePrompt
from prefold.engine.request import SamplingParams

_TOKENS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
_ONE = SamplingParams(max_tokens=1, ignore_eos=True)
_IMAGE_SIZE = 256


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    # As is the call of a model's maker below, left by transformers without annotations.
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    tokenizer.add_special_tokens({"additional_special_tokens": list(_TOKENS)})
    return tokenizer


def save_model(directory: Path, hidden: int, layers: int) -> None:
    """Write a model of random weights whose images fill 64 positions."""
    tokenizer = make_tokenizer()
    config = Idefics3Config(
        image_token_id=tokenizer.get_vocab()["<image>"],
        scale_factor=2,
        vision_config={
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "image_size": _IMAGE_SIZE,
            "patch_size": 16,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": 320,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 64,
            "num_key_value_heads": max(hidden // 192, 1),
            "max_position_embeddings": 4096,
            "eos_token_id": 256,
            "pad_token_id": None,
        },
    )
    torch.manual_seed(0)
    # transformers leaves this call without annotations.
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    processor = Idefics3ImageProcessorPil(
        size={"longest_edge": _IMAGE_SIZE},
        max_image_size={"longest_edge": _IMAGE_SIZE},
        do_image_splitting=False,
    )
    Idefics3Processor(processor, tokenizer, image_seq_len=64).save_pretrained(directory)


def make_file(seed: int) -> bytes:
    """Return a photograph's worth of noise, as JPEG."""
    small = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((640, 480)).save(file, "JPEG", quality=90)
    return file.getvalue()


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    started_at = time.perf_counter()
    work()
    return time.perf_counter() - started_at


def run(engine: Engine, prompt: Prompt, options: RequestOptions | None = None) -> int:
    """Run one prompt; return how many of its tokens hit."""
    [output] = engine.generate([prompt], _ONE, options=options or RequestOptions())
    if output.error is not None:
        raise SystemExit(output.error)
    return output.usage.cached_tokens


def measure(engine: Engine, length: int, rounds: int) -> dict[str, float]:
    """Return median times in milliseconds, and their ratios."""
    text = ("a picture and a question " * length)[:length]
    image = ImagePrompt(text=f"{text}<image>what is it?", images=(make_file(1),))
    # As many tokens, without the image: its 64 positions, and three around them.
    plain = f"{text}{'x' * 67}what is it?"
    hits = {"image": 0, "text": 0}
    times: dict[str, list[float]] = {name: [] for name in ("image", "text", "read", "cold")}
    cold = RequestOptions(access=NO_CACHE)
    mixer, tokenizer = engine.parts.mixer, engine.parts.tokenizer
    if mixer is None or tokenizer is None:
        raise SystemExit("the model takes no images")
    times["cold"].append(seconds(lambda: run(engine, image, cold)))
    for prompt in (image, plain):
        run(engine, prompt)
    for _ in range(rounds):
        times["text"].append(seconds(lambda: hits.update(text=run(engine, plain))))
        times["image"].append(seconds(lambda: hits.update(image=run(engine, image))))
        times["read"].append(seconds(lambda: mixer.mix_images(image, tokenizer.encode)))
    found = {f"{name}_ms": 1e3 * statistics.median(of) for name, of in times.items()}
    ratios = [one / other for one, other in zip(times["image"], times["text"], strict=True)]
    return {
        "prompt_tokens": length + 67 + 11,
        "hit_tokens_image": hits["image"],
        "hit_tokens_text": hits["text"],
        **found,
        "warm_ratio": statistics.median(ratios),
        "cold_over_warm": found["cold_ms"] / found["image_ms"],
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=1024, help="tokens before the image")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        save_model(Path(name), arguments.hidden, arguments.layers)
        settings = ModelSettings(cache_blocks=512)
        assembly = assemble(name, settings, Silence())
        engine = Engine(assembly.parts, assembly.config)
        found = measure(engine, arguments.length, arguments.rounds)
        engine.close()
    if arguments.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:18} {value:10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
