"""Block keys: finding by key and finding by tokens agree."""

import pytest

from prefold.cache import Access, ByDomain, ByPrefix
from prefold.cache.keys import KeyIndex
from prefold.identity.domain import Domain
from prefold.identity.secret import MasterSecret
from support.cache_driver import A, CacheDriver, numbered
from support.fingerprints import make_fingerprint
from support.running import as_tokens
from support.tree_picture import picture

B = 4
PROMPT = numbered(14)


def found(driver: CacheDriver, tokens: list[int], domain: Domain = A) -> list[int | None]:
    keys = driver.cache.keys.of(driver.fingerprint, domain, as_tokens(tokens))
    return [driver.cache.keys.find(key) for key in keys]


def test_every_whole_block_is_found_and_no_partial_one() -> None:
    driver = CacheDriver(block_size=B)
    run = driver.begin(PROMPT)
    driver.compute(run)
    assert found(driver, PROMPT) == run.lease.block_ids[:3].tolist()
    driver.end(run)
    assert found(driver, [*PROMPT, 7, 8]) == [*run.lease.block_ids[:3].tolist(), None]


def test_a_key_depends_on_every_token_before_and_on_domain_and_fingerprint() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(PROMPT)
    assert found(driver, [99, *PROMPT[1:]]) == [None] * 3
    assert found(driver, PROMPT, Domain("b")) == [None] * 3
    assert found(driver, PROMPT, Domain("a", salt=b"s")) == [None] * 3
    other = make_fingerprint(block_size=B, weights=b"other")
    keys = driver.cache.keys.of(other, A, as_tokens(PROMPT))
    assert [driver.cache.keys.find(key) for key in keys] == [None] * 3


def test_a_found_key_follows_splits_merges_extensions_and_losses() -> None:
    driver = CacheDriver(num_blocks=12, block_size=B)
    driver.serve(PROMPT)
    blocks = found(driver, PROMPT)
    runs = [driver.acquire([*PROMPT[:n], 99]) for n in (4, 8)]
    assert found(driver, PROMPT) == blocks
    for run in runs:
        driver.end(run)
    assert found(driver, PROMPT) == blocks
    driver.serve(numbered(20))
    assert found(driver, numbered(20))[:3] == blocks
    assert None not in found(driver, numbered(20))
    driver.fill(10)
    assert found(driver, numbered(20)) == [*blocks[:2], None, None, None]


def test_what_was_invalidated_is_not_found() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(PROMPT)
    found(driver, PROMPT)
    run = driver.acquire(PROMPT)
    driver.cache.invalidate(
        ByPrefix(fingerprint=driver.fingerprint, domain=A, tokens=as_tokens(PROMPT[:8]))
    )
    assert [block is None for block in found(driver, PROMPT)] == [False, True, True]
    driver.cache.invalidate(ByDomain(domain=A))
    assert found(driver, PROMPT) == [None] * 3
    driver.end(run)
    driver.serve(PROMPT)
    assert None not in found(driver, PROMPT)


def test_throw_away_blocks_have_no_key() -> None:
    driver = CacheDriver(block_size=B)
    run = driver.begin(PROMPT, access=Access(read=True, write=False))
    driver.compute(run)
    assert found(driver, PROMPT) == [None] * 3


def test_remembered_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefold.cache.keys.MAX_REMEMBERED", 2)
    driver = CacheDriver(block_size=B)
    for domain in (A, Domain("b"), Domain("c")):
        driver.serve(PROMPT, domain=domain)
        assert None not in found(driver, PROMPT, domain)
        assert None not in found(driver, PROMPT, domain)
    index: KeyIndex = driver.cache.keys
    assert len(index._places) <= 2
    assert len(index._domain_keys) <= 2


def test_equal_secrets_make_equal_keys_and_others_do_not() -> None:
    secret = MasterSecret.generate()
    driver = CacheDriver(block_size=B)
    trees = driver.cache._trees
    one, same = KeyIndex(secret, trees), KeyIndex(secret, trees)
    other = KeyIndex(MasterSecret.generate(), trees)
    lease = driver.acquire(PROMPT).lease
    content = next(iter(driver.cache._trees.roots().values()))
    audience = lease.own_audience
    assert one.key_of(audience, content) == same.key_of(audience, content)
    assert one.key_of(audience, content) != other.key_of(audience, content)


def test_asking_for_keys_changes_nothing_else() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(PROMPT)
    before = picture(driver.cache)
    found(driver, PROMPT)
    assert picture(driver.cache) == before
