"""GGUF conversion: one GGUF file made into a directory that transformers loads as is.

Run as a program, so that the memory it takes (some three times the model) goes back to
the system at its end and the libraries' progress bars stay off the screen::

    python -m prefold.engine.gguf_conversion MODEL.gguf DIRECTORY

The weights are written in float32. A dequantised weight is a half-precision scale times
a small integer plus a half-precision offset; that sum has more bits than float16 or
bfloat16 can hold, so anything narrower would round what transformers computes.
"""

from __future__ import annotations

import errno
import functools
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import quantization_config

#: Exit statuses of the program besides 0.
EXIT_FAILED = 1
EXIT_DISK_FULL = 3


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Write the model in ``gguf`` and its tokenizer into an existing directory.

    Raises:
        OSError: A file cannot be read or written; the directory is then incomplete.
        ValueError: transformers cannot read this model, or it has no chat template.
        ImportError: A package that reading GGUF files takes is not installed.
    """
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if tokenizer.chat_template is None:
        raise ValueError(f"{gguf.name} has no chat template")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **_dequantise()
    )
    # Otherwise the model counts as quantised still, and refuses to be written.
    if "quantization_config" in vars(model.config):
        del model.config.quantization_config
    vars(model)["hf_quantizer"] = None
    tokenizer.model_max_length = model.config.max_position_embeddings
    try:
        tokenizer.save_pretrained(directory)
        model.save_pretrained(directory)
    except SafetensorError as exc:
        # The writer reports the system's error only within its text.
        if f"os error {errno.ENOSPC}" in str(exc):
            raise OSError(errno.ENOSPC, "No space left on device") from exc
        raise OSError(errno.EIO, str(exc)) from exc


def _dequantise() -> dict[str, object]:
    """Return the argument that asks for plain weights, where there is a choice.

    Releases of transformers that can keep GGUF weights packed have a setting for it;
    earlier ones always unpack.
    """
    setting = vars(quantization_config).get("GgufConfig")
    return {} if setting is None else {"quantization_config": setting(dequantize=True)}


def _end_with_parent() -> None:
    """Wait for the end of standard input, which is that of the process that gave it.

    Without this a conversion whose parent was killed would go on for a minute, and
    keep the disk space of files that the next start has already removed.
    """
    # Not through ``sys.stdin``, whose lock this thread would hold at the program's end.
    while os.read(0, 1):
        pass
    os._exit(EXIT_FAILED)


def _remember_tensor_names() -> None:
    """Let the table of tensor names be made once, and not for each of 400 modules.

    That is a third of the conversion's time. Done for this program alone: it exchanges
    a function of another package for one with the same results.
    """
    gguf = importlib.import_module("gguf")
    vars(gguf)["get_tensor_name_map"] = functools.cache(gguf.get_tensor_name_map)


def main(arguments: Sequence[str]) -> int:
    """Convert; on failure write a sentence to standard error as the last line."""
    gguf, directory = map(Path, arguments)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _remember_tensor_names()
        convert_gguf(gguf, directory)
    except OSError as exc:
        sys.stderr.write(f"\n{exc}\n")
        is_full = exc.errno in {errno.ENOSPC, errno.EDQUOT}
        return EXIT_DISK_FULL if is_full else EXIT_FAILED
    except (ValueError, ImportError) as exc:
        sys.stderr.write(f"\n{exc}\n")
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
