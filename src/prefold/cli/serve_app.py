"""The command ``prefold serve``: what can be typed; the work is in the module loaded."""

from __future__ import annotations

from prefold.cli.lazy import load_light
from prefold.cli.serve_options import ServeOptions
from prefold.cli.spread import spread


@spread()
def serve(*, options: ServeOptions) -> int:
    """Serve a model to OpenAI's clients."""
    return load_light("prefold.cli.serve", "run_serve")(options)
