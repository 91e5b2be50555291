import os

from hypothesis import HealthCheck, settings

# How fast this machine draws examples is no property of the code.
settings.register_profile(
    "dev",
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "ci", settings.get_profile("dev"), max_examples=200, derandomize=True
)
settings.register_profile(
    "soak", settings.get_profile("dev"), max_examples=5_000, stateful_step_count=100
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
