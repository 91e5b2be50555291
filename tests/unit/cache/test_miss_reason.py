import pytest

from prefold.cache import NO_CACHE, ByPrefix, MissKind, MissReason
from prefold.cache.trees import MAX_TOMBSTONES
from prefold.identity.domain import Domain
from support.cache_driver import A, CacheDriver, numbered
from support.fingerprints import make_fingerprint
from support.running import as_tokens

B = 8


def test_a_whole_hit_is_complete() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(numbered(2 * B + 1))
    miss = driver.lookup(numbered(2 * B + 1)).miss
    assert miss == MissReason(kind=MissKind.COMPLETE, at_token=2 * B)


def test_a_request_that_does_not_read_says_so() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(numbered(20))
    run = driver.acquire(numbered(20), access=NO_CACHE)
    assert run.lease.miss == MissReason(kind=MissKind.READ_OFF, at_token=0)


@pytest.mark.parametrize("length", [2, B])
def test_less_than_a_block_is_too_short(length: int) -> None:
    miss = CacheDriver(block_size=B).lookup(numbered(length)).miss
    assert miss == MissReason(kind=MissKind.TOO_SHORT, at_token=0)


def test_an_empty_cache_has_never_seen_it() -> None:
    miss = CacheDriver(block_size=B).lookup(numbered(B + 1)).miss
    assert miss == MissReason(kind=MissKind.NEVER_SEEN, at_token=0)


def test_what_lies_beyond_all_that_is_cached_was_never_seen() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(numbered(2 * B))
    miss = driver.lookup(numbered(4 * B)).miss
    assert miss == MissReason(kind=MissKind.NEVER_SEEN, at_token=2 * B)


@pytest.mark.parametrize("position", [1, 3, 7, B, B + 1, 2 * B, 2 * B + 5])
def test_a_divergence_names_the_first_token_that_differs(position: int) -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(numbered(3 * B))
    prompt = [*numbered(position), *numbered(3 * B, 500)]
    miss = driver.lookup(prompt).miss
    assert miss == MissReason(kind=MissKind.DIVERGED, at_token=position)


@pytest.mark.parametrize("num_kept", [0, 1, 3])
def test_an_eviction_is_told_with_when_by_whom_and_how_much(num_kept: int) -> None:
    driver = CacheDriver(num_blocks=6, block_size=B)
    driver.serve(numbered(4 * B))
    driver.fill(6 - num_kept)
    miss = driver.lookup(numbered(5 * B)).miss
    assert miss.kind is MissKind.EVICTED
    assert miss.at_token == num_kept * B
    assert miss.policy == "lru"
    assert miss.num_lost_blocks == 4 - num_kept
    assert miss.lost_at is not None
    assert 0 < miss.lost_at <= driver.clock.now


def test_losses_below_a_lost_node_are_added_up() -> None:
    driver = CacheDriver(num_blocks=8, block_size=B)
    base = numbered(2 * B)
    driver.serve([*base, *numbered(3 * B, 100)])
    driver.serve([*base, *numbered(3 * B, 200)])
    driver.fill(8)
    miss = driver.lookup([*base, 1]).miss
    assert (miss.kind, miss.num_lost_blocks) == (MissKind.EVICTED, 8)
    tree = driver.cache._trees.of(driver.fingerprint)
    assert len(tree.tombstones) == 1, "those below were folded into one"


def test_what_comes_back_is_no_loss_any_more() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B)
    driver.serve(numbered(4 * B))
    driver.fill(6)
    driver.serve(numbered(4 * B))
    driver.cache.check_invariants()
    assert driver.lookup(numbered(5 * B)).miss.kind is MissKind.NEVER_SEEN


def test_tombstones_are_bounded_and_their_audiences_forgotten() -> None:
    driver = CacheDriver(num_blocks=2, block_size=1)
    tree = driver.cache._trees.of(driver.fingerprint)
    tree.tombstones.limit = 3
    for number in range(9):
        driver.serve([7, 8], domain=Domain(f"d{number}"))
        driver.fill(2, Domain("z"))
    driver.check()
    assert len(tree.tombstones) == 3
    assert {readers.audience.domain.path for readers in tree.audiences.present()} == {
        "d6",
        "d7",
        "d8",
    }
    assert MAX_TOMBSTONES > 1000


def test_other_domains_are_told_nothing_of_an_eviction() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B)
    driver.serve(numbered(4 * B))
    driver.fill(6)
    for domain in (Domain("b"), Domain("a/b"), Domain("a", salt=b"s")):
        assert driver.lookup(numbered(5 * B), domain).miss.kind is MissKind.NEVER_SEEN


def test_an_invalidated_prefix_is_told() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(numbered(4 * B))
    driver.cache.invalidate(
        ByPrefix(fingerprint=driver.fingerprint, domain=A, tokens=as_tokens(numbered(B)))
    )
    miss = driver.lookup(numbered(5 * B)).miss
    assert (miss.kind, miss.at_token, miss.policy) == (MissKind.INVALIDATED, 0, None)
    assert miss.num_lost_blocks == 4


def test_another_fingerprint_is_told_with_the_fields_that_differ() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(numbered(4 * B))
    other = make_fingerprint(block_size=B, adapter=b"x", weights=b"y")
    miss = driver.cache.lookup(other, A, as_tokens(numbered(B + 1))).miss
    assert miss.kind is MissKind.OTHER_FINGERPRINT
    assert miss.differing_fields == ("weights", "adapter")
    stranger = driver.cache.lookup(other, Domain("b"), as_tokens(numbered(B + 1))).miss
    assert stranger.kind is MissKind.NEVER_SEEN


@pytest.mark.parametrize("num_common", [0, 3, B - 1])
def test_another_fingerprint_outranks_a_common_beginning(num_common: int) -> None:
    driver = CacheDriver(block_size=B)
    begin = numbered(num_common)
    prompts = [[*begin, *numbered(2 * B, seed)] for seed in (100, 200)]
    for prompt in prompts:
        driver.serve(prompt)
    driver.fingerprint = make_fingerprint(block_size=B, chat_template=b"another")
    for prompt in prompts:
        miss = driver.lookup(prompt).miss
        assert miss.kind is MissKind.OTHER_FINGERPRINT
        assert miss.differing_fields == ("chat_template",)
        driver.serve(prompt)
    # What only begins like them was never anywhere.
    other = driver.lookup([*begin, *numbered(2 * B, 300)]).miss.kind
    assert other is (MissKind.DIVERGED if num_common else MissKind.NEVER_SEEN)


def test_a_whole_first_block_that_hits_is_under_this_fingerprint() -> None:
    driver = CacheDriver(block_size=B)
    one, other = ([*numbered(B), *numbered(2 * B, seed)] for seed in (100, 200))
    driver.serve(one)
    driver.serve(other)
    driver.fingerprint = make_fingerprint(block_size=B, chat_template=b"another")
    driver.serve(one)
    assert driver.lookup(other).miss == MissReason(kind=MissKind.DIVERGED, at_token=B)


@pytest.mark.parametrize("kind", MissKind)
def test_every_reason_is_a_sentence(kind: MissKind) -> None:
    text = MissReason(kind=kind, at_token=3, differing_fields=("adapter",)).describe()
    assert text
    assert not text.endswith(".")
