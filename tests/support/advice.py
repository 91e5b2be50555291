"""Advice for tests: prices at which amounts are easily told."""

from __future__ import annotations

from prefold.advisor.advice import Prices
from prefold.eviction.cost import CostFit

#: 0.1 ms a token at any depth, 1 ms a reply's token, 128 KiB of KV, 80 GiB.
PRICES = Prices(
    prefill=CostFit(per_step=0.0, per_token=1e-4, per_pair=0.0),
    decode_ms=1.0,
    bytes_per_token=131_072,
)
