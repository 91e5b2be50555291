"""Quantization: KV as whole numbers of one byte, with a scale for each head of each token.

::

    scale    = largest magnitude of the head's numbers / 127
    stored   = number / scale, rounded to the nearest, ties to even
    read as  = stored * scale, in float32

A token's scale rests on that token's numbers alone, so what is stored does not depend on
what is computed with it. Symmetric rounding with a scale a row is textbook (Jacob et al.
2018, section 2.1, without a zero point); a scale a token keeps a token that is written
later from changing one that is there.
"""

from __future__ import annotations

import torch

#: The type that KV with scales is stored as.
QUANTIZED = torch.int8

#: The largest stored magnitude; -128 is not used, so that rounding is symmetric.
LARGEST = 127

SCALE_DTYPE = torch.float32


def scale_itemsize(kv_dtype: torch.dtype) -> int:
    """Return the bytes of a scale; 0 where KV of this type has none."""
    return SCALE_DTYPE.itemsize if kv_dtype is QUANTIZED else 0


def quantize(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is stored of ``[..., size]``, and the scales, ``[...]``.

    A row of zeros has the scale 0. One with a number that is none has a scale that is
    none either, so it can never pass for KV.
    """
    numbers = numbers.to(SCALE_DTYPE)
    scales = numbers.abs().amax(-1) / LARGEST
    # Where the scale is 0, or too small to be exact, quotients may be anything.
    quotients = (numbers / scales[..., None]).nan_to_num_(0.0)
    stored = quotients.clamp_(-LARGEST, LARGEST).round_().to(QUANTIZED)
    return stored, scales
