import os

# Threads that wait for the next parallel loop must not spin: on a machine that does
# anything else besides, a loop of microseconds would take milliseconds. Read when torch
# is loaded, so it stands before everything that imports it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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
    "soak", settings.get_profile("dev"), max_examples=1_000, stateful_step_count=50
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
