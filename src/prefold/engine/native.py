"""Native: the compiled kernels, where they were built and the processor runs them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

# The kernels share torch's pool of threads: its OpenMP runtime has to be there first.
import torch

from prefold.blocks.layout import LayerShape
from prefold.errors import ConfigError

try:
    from prefold.engine import _kernels
except ImportError:
    # There was no compiler when this was installed.
    HAS_KERNELS = False
else:
    HAS_KERNELS = True

_LOG = logging.getLogger(__name__)

#: Names of the implementations of attention.
REFERENCE = "reference"
NATIVE = "cpu"

#: Part of the numerics. Raise it whenever a kernel's results may get other bits.
KERNEL_VERSION = 2

#: Chooses an implementation where no argument does.
_ATTENTION_VARIABLE = "PREFOLD_ATTENTION"

#: Chooses one of the kernels, for tests and for comparing them.
_KERNEL_VARIABLE = "PREFOLD_KERNEL"

#: Makes it an error that the kernels were not built.
_REQUIRED_VARIABLE = "PREFOLD_REQUIRE_NATIVE"


def kernel_name() -> str:
    """Return the kernel in use: the fastest one, unless ``PREFOLD_KERNEL`` names another.

    Raises:
        ConfigError: There is none of that name on this machine.
    """
    names = _kernels.kernel_names()
    wanted = os.environ.get(_KERNEL_VARIABLE) or names[0]
    if wanted not in names:
        raise ConfigError(
            f"{_KERNEL_VARIABLE} must be one of {', '.join(names)} on this machine, got "
            f"{wanted!r}"
        )
    return wanted


def choose_attention(
    wanted: str | None, device: torch.device, shapes: Sequence[LayerShape]
) -> str:
    """Return the implementation of attention for a model.

    Args:
        wanted: Its name; None for what ``PREFOLD_ATTENTION`` says, or the fastest.
        device: Where the model runs.
        shapes: Of its layers.

    Raises:
        ConfigError: What is wanted does not exist or cannot serve the model.
    """
    wanted = wanted or os.environ.get(_ATTENTION_VARIABLE) or None
    if wanted not in (None, REFERENCE, NATIVE):
        raise ConfigError(f"attention must be {NATIVE!r} or {REFERENCE!r}, got {wanted!r}")
    if wanted == REFERENCE:
        return REFERENCE
    if device.type != "cpu":
        obstacle = f"runs on the CPU only, not on {device.type}"
    elif not HAS_KERNELS:
        obstacle = "was not built: install a C++ compiler, then Prefold again"
        if os.environ.get(_REQUIRED_VARIABLE) == "1":
            raise ConfigError(f"the native attention {obstacle}")
        if wanted is None:
            _LOG.warning("the native attention %s; the reference is slower", obstacle)
    else:
        largest = max(max(shape.key_size, shape.value_size) for shape in shapes)
        if largest <= _kernels.MAX_SIZE:
            kernel_name()
            return NATIVE
        obstacle = f"takes heads of up to {_kernels.MAX_SIZE} numbers, not {largest}"
    if wanted == NATIVE:
        raise ConfigError(f"the native attention {obstacle}")
    return REFERENCE


def describe_attention(name: str) -> str:
    """Return an implementation's name in the numerics: all that its bits depend on."""
    return f"{NATIVE}-{kernel_name()}-{KERNEL_VERSION}" if name == NATIVE else name
