"""Patterns of adapters: those that people write pass, those that never end do not."""

from __future__ import annotations

import pytest

from prefold.engine.adapter_patterns import compile_pattern
from prefold.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        r".*\.(q_proj|v_proj)",
        r"^(?!.*vision).*(?:q_proj|k_proj|v_proj|o_proj).*$",
        r"model\.layers\.[0-9]+\.mlp\.(gate|up|down)_proj",
        r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj).*?)|(?:\bm\.[\d]{1,}\.)",
        r"(.*\.)?(q_proj)$",
        r"a\(b\)*",
        r"[(+*|]+",
    ],
)
def test_usual_patterns_pass(text: str) -> None:
    assert compile_pattern("target_modules", text).pattern == text


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+$",
        "(a*)*",
        "((a+))+",
        "(?:a|a)*$",
        "(a|aa)+",
        "(a?a?)+",
        "(?P<x>a+){5}",
        ".*" * 9,
        "a" * 5000,
        "(",
        "a{2,1}",
        "[",
    ],
)
def test_what_may_never_end_or_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a pattern in target_modules"):
        compile_pattern("target_modules", text)
