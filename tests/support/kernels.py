"""The compiled kernels that a test runs with."""

from __future__ import annotations

import os

import pytest

from prefold.engine.native import HAS_KERNELS

if HAS_KERNELS:
    from prefold.engine import _kernels

    #: Names of the kernels of this machine.
    KERNELS: list[str] = _kernels.kernel_names()
else:
    KERNELS = []

#: The kernel that splits numbers into pieces.
AMX = "amx"

#: Kernels that fuse multiplications, whose bits are the same whatever their vectors' width.
FUSED = [kernel for kernel in KERNELS if kernel not in ("portable", AMX)]
needs_two_widths = pytest.mark.skipif(
    len(FUSED) < 2, reason="the processor has vectors of one width"
)

#: For modules that test the kernels. Where they are required, the lack is a failure.
needs_kernels = pytest.mark.skipif(
    not HAS_KERNELS and os.environ.get("PREFOLD_REQUIRE_NATIVE") != "1",
    reason="the kernels were not built",
)
