"""The command ``prefold advise``: what can be typed; the work is in the module loaded."""

from __future__ import annotations

from prefold.cli.advise_options import AdviseOptions
from prefold.cli.lazy import load_light
from prefold.cli.spread import spread


@spread()
def advise(*, options: AdviseOptions) -> int:
    """Say from recorded traffic whether a prefix cache pays, and what breaks prefixes."""
    return load_light("prefold.cli.advise", "run_advise")(options)
