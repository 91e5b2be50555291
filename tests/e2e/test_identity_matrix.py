"""One difference and nothing is shared; none and everything is, with the same bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prefold.blocks.table import TOKEN_DTYPE
from prefold.engine.native import HAS_KERNELS
from prefold.errors import ConfigError
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint
from support.identity_matrix import (
    BLOCK_SIZE,
    DOMAIN,
    PLAIN,
    ROWS,
    Corner,
    Side,
    run,
)
from support.tiny_engines import are_equal_outputs, assert_equal_outputs, threads
from support.tiny_models import VOCAB_SIZE

pytestmark = pytest.mark.e2e

PROMPT = np.random.default_rng(0).integers(0, VOCAB_SIZE, 45).astype(TOKEN_DTYPE)
ALL_BUT_THE_LAST = len(PROMPT) - 1

CASES = [(name, side) for name, sides in ROWS.items() for side in sides]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Corner:
    with threads(1):
        return Corner(PLAIN, tmp_path_factory.mktemp("plain"))


def test_every_field_of_the_fingerprint_has_a_row() -> None:
    assert set(ROWS) == {field.name for field in dataclasses.fields(Fingerprint)}
    assert all(ROWS.values())


def test_every_field_of_a_domain_has_a_row() -> None:
    compared = {field.name for field in dataclasses.fields(Domain) if field.compare}
    assert set(DOMAINS) == compared


def test_two_engines_that_differ_in_nothing_share_everything(
    plain: Corner, tmp_path: Path
) -> None:
    # Its files are others, of the same content.
    twin = Corner(PLAIN, tmp_path)
    assert twin.fingerprint == plain.fingerprint
    cache, store = plain.make_cache(), plain.make_store()
    first, second = (side.make_engine(cache, store) for side in (plain, twin))
    cold = run(first, PROMPT)
    assert cold.usage.cached_tokens == 0
    for engine in (second, first, second):
        warm = run(engine, PROMPT)
        assert warm.usage.cached_tokens == ALL_BUT_THE_LAST
        assert_equal_outputs(warm, cold)
    keys = [cache.keys.of(side.fingerprint, DOMAIN, PROMPT) for side in (plain, twin)]
    assert keys[0] == keys[1]
    assert all(cache.keys.find(key) is not None for key in keys[0])


@pytest.mark.parametrize(("name", "side"), CASES, ids=[name for name, _ in CASES])
def test_two_engines_that_differ_in_one_field_share_nothing(
    plain: Corner, tmp_path: Path, name: str, side: Side
) -> None:
    if name == "layout_version" and not HAS_KERNELS:
        pytest.skip("there is one order only without the kernels")
    other = Corner(side, tmp_path, plain.numerics)
    assert plain.fingerprint.diff(other.fingerprint) == (name,)
    # One cache for both, but a store for each: whoever takes a block of the other's reads
    # what it did not write.
    cache = plain.make_cache()
    corners = (plain, other) if side.block_size == BLOCK_SIZE else (plain,)
    engines = [corner.make_engine(cache, corner.make_store()) for corner in corners]
    fresh = [corner.run_fresh(PROMPT) for corner in corners]
    for cached in (0, ALL_BUT_THE_LAST):
        for engine, alone in zip(engines, fresh, strict=True):
            output = run(engine, PROMPT)
            assert output.usage.cached_tokens == cached
            assert_equal_outputs(output, alone)
    if side.block_size != BLOCK_SIZE:
        # Not even the cache is the same.
        with pytest.raises(ConfigError, match="blocks of 16 tokens"):
            cache.lookup(other.fingerprint, DOMAIN, PROMPT)
    ours, theirs = (
        cache.keys.of(corner.fingerprint, DOMAIN, PROMPT) for corner in (plain, other)
    )
    assert ours
    assert theirs
    assert not set(ours) & set(theirs)


#: By field of a domain, one that differs from ``DOMAIN`` in it alone.
DOMAINS = {"path": Domain("acme/sales"), "salt": Domain(DOMAIN.path, salt=b"a")}


@pytest.mark.parametrize("name", DOMAINS)
def test_two_requests_whose_domains_differ_in_one_field_share_nothing(
    plain: Corner, name: str
) -> None:
    cache = plain.make_cache()
    engine = plain.make_engine(cache, plain.make_store())
    alone = plain.run_fresh(PROMPT)
    for cached in (0, ALL_BUT_THE_LAST):
        for domain in (DOMAIN, DOMAINS[name]):
            output = run(engine, PROMPT, domain)
            assert output.usage.cached_tokens == cached
            assert_equal_outputs(output, alone)
    keys = [
        set(cache.keys.of(plain.fingerprint, domain, PROMPT))
        for domain in (DOMAIN, DOMAINS[name])
    ]
    assert not keys[0] & keys[1]


def test_parts_of_an_identity_that_look_alike_are_not_taken_for_each_other(
    plain: Corner, tmp_path: Path
) -> None:
    adapted = Corner(Side(adapter=b"x"), tmp_path)
    cache, store = plain.make_cache(), plain.make_store()
    base, with_adapter = (side.make_engine(cache, store) for side in (plain, adapted))
    cases = (
        (with_adapter, Domain("t")),
        (base, Domain("t")),
        (base, Domain("t", salt=b"x")),
        (base, Domain("x")),
        (base, Domain("org_1", salt=b"2345")),
        (base, Domain("org_12345")),
        (base, Domain("a", salt=b"bc")),
        (base, Domain("ab", salt=b"c")),
        (base, Domain("ab", salt=b"/c")),
        (base, Domain("ab/c")),
    )
    short = PROMPT[: BLOCK_SIZE + 5]
    for cached in (0, len(short) - 1):
        for engine, domain in cases:
            assert run(engine, short, domain).usage.cached_tokens == cached


def test_the_matrix_would_see_a_field_that_is_left_out(
    plain: Corner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Corner(Side(seed=1), tmp_path)
    forgetful = dataclasses.replace(other.fingerprint, weights=plain.fingerprint.weights)
    monkeypatch.setattr(other, "fingerprint", forgetful)
    cache, store = plain.make_cache(), plain.make_store()
    run(plain.make_engine(cache, store), PROMPT)
    output = run(other.make_engine(cache, store), PROMPT)
    assert output.usage.cached_tokens == ALL_BUT_THE_LAST
    assert not are_equal_outputs(output, other.run_fresh(PROMPT))
