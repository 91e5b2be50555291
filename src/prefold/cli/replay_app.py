"""The command ``prefold replay``: what can be typed; the work is in the module loaded."""

from __future__ import annotations

from prefold.cli.lazy import load_light
from prefold.cli.replay_options import ReplayOptions
from prefold.cli.spread import spread


@spread()
def replay(*, options: ReplayOptions) -> int:
    """Show what eviction policies would have hit on a recorded trace."""
    return load_light("prefold.cli.replay", "run_replay")(options)
