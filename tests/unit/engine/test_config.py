from __future__ import annotations

from collections.abc import Callable

import pytest

from prefold.engine.config import (
    ModelLimits,
    RequestOptions,
    SchedulerConfig,
    parse_memory,
)
from prefold.errors import ConfigError, RequestError


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        (1, 1),
        ("1", 1),
        ("4GiB", 4 * 2**30),
        ("4 gib", 4 * 2**30),
        (" 512MiB ", 512 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("10KB", 10_000),
        ("2TiB", 2 * 2**40),
        ("7B", 7),
    ],
)
def test_memory_sizes(value: object, num_bytes: int) -> None:
    assert parse_memory(value) == num_bytes


@pytest.mark.parametrize(
    "value",
    ["", "GiB", "4 GiBs", "-4GiB", "4G i B", "1e9", "٤GiB", 0, -1, True, 1.5, "0", None],
)
def test_what_is_no_memory_size_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="memory size"):
        parse_memory(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SchedulerConfig(max_step_tokens=0),
        lambda: SchedulerConfig(max_running=0),
        lambda: SchedulerConfig(max_queued=0),
        lambda: SchedulerConfig(max_step_tokens=8, max_running=8),
        lambda: ModelLimits(vocab_size=0, max_model_len=8),
        lambda: ModelLimits(vocab_size=8, max_model_len=1),
    ],
)
def test_senseless_limits_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    "options",
    [
        {"domain": "acme"},
        {"access": True},
        {"tenant": ""},
        {"tenant": "x" * 257},
        {"priority": 1.5},
        {"priority": True},
    ],
)
def test_senseless_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        RequestOptions(**options)  # type: ignore[arg-type]
