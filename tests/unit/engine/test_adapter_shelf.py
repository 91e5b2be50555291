"""The shelf of adapters: names, versions, and who still has what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prefold.cache import ByField, MissKind
from prefold.engine.adapter_shelf import MAX_ADAPTERS, AdapterShelf
from prefold.engine.config import RequestOptions
from prefold.engine.loading import LoadedModel
from prefold.engine.request import FinishReason
from prefold.errors import (
    ConfigError,
    InvariantError,
    NameInUseError,
    RequestError,
    UnknownAdapterError,
)
from prefold.identity.domain import Domain
from support.fingerprints import make_fingerprint
from support.tiny_adapters import save_adapter
from support.tiny_engines import TinyEngine, greedy, load_tiny
from support.tiny_models import make_llama

PROMPT = list(range(40))
WITH_A = RequestOptions(adapter="a")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(make_llama(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def paths(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("adapters")
    return [save_adapter(loaded, base / str(i), seed=i) for i in range(2)]


@pytest.fixture
def engine(loaded: LoadedModel) -> TinyEngine:
    return TinyEngine(loaded)


def test_a_name_is_taken_until_a_reload_is_asked_for(
    engine: TinyEngine, paths: list[Path]
) -> None:
    engine.adapters.load("a", paths[0])
    before = engine.adapters.get("a")
    with pytest.raises(NameInUseError, match="reload"):
        engine.adapters.load("a", paths[1])
    assert engine.adapters.get("a") is before
    engine.adapters.load("a", paths[1], reload=True)
    assert engine.adapters.get("a").digest != before.digest
    with pytest.raises(UnknownAdapterError):
        engine.adapters.load("b", paths[1], reload=True)
    assert engine.adapters.names == ("a",)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "ä", "a" * 129, None, 3])
def test_senseless_names_are_refused(
    engine: TinyEngine, paths: list[Path], name: str
) -> None:
    with pytest.raises(ConfigError, match="an adapter's name"):
        engine.adapters.load(name, paths[0])


def test_there_is_an_end_to_names(engine: TinyEngine, paths: list[Path]) -> None:
    engine.adapters.load("a", paths[0])
    adapter = engine.adapters.get("a")
    for number in range(1, MAX_ADAPTERS):
        engine.adapters.put(f"a{number}", adapter, replaces=False)
    with pytest.raises(ConfigError, match="unload one"):
        engine.adapters.put("one-more", adapter, replaces=False)
    engine.adapters.put("a1", adapter, replaces=True)
    engine.check_invariants()


def test_requests_for_what_is_not_loaded_are_refused(engine: TinyEngine) -> None:
    for call in (engine.run, engine.lookup):
        with pytest.raises(UnknownAdapterError):
            call(PROMPT, options=WITH_A)
    with pytest.raises(RequestError, match="adapter must be the name"):
        RequestOptions(adapter=3)  # type: ignore[arg-type]
    engine.assert_nothing_is_held()


def test_an_engine_without_a_host_takes_none(engine: TinyEngine, paths: list[Path]) -> None:
    shelf = AdapterShelf(None, {})
    with pytest.raises(ConfigError, match="takes no adapters"):
        shelf.load("a", paths[0])
    engine.adapters.load("a", paths[0])
    adapter = engine.adapters.get("a")
    with pytest.raises(ConfigError, match="takes no adapters"):
        shelf.put("a", adapter, replaces=False)


def test_open_requests_keep_the_version_of_their_submission(
    engine: TinyEngine, paths: list[Path]
) -> None:
    engine.adapters.load("a", paths[0])
    wanted = engine.run(PROMPT, greedy(6), WITH_A)
    kept = engine.submit(PROMPT[::-1] + PROMPT, greedy(6), options=WITH_A)
    running = engine.submit(PROMPT, greedy(6), options=WITH_A)
    engine.step()
    queued = engine.submit(PROMPT, greedy(6), options=WITH_A)
    engine.adapters.load("a", paths[1], reload=True)
    here, gone = engine.adapters.infos()
    assert (here.is_leaving, here.num_open) == (False, 0)
    assert (gone.is_leaving, gone.num_open, gone.name) == (True, 3, "a")
    engine.adapters.unload("a")
    assert [info.is_leaving for info in engine.adapters.infos()] == [True]
    outputs = {}
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id] = output
    assert outputs[running].token_ids == outputs[queued].token_ids == wanted.token_ids
    assert outputs[kept].finish_reason is FinishReason.LENGTH
    assert engine.adapters.infos() == ()
    with pytest.raises(UnknownAdapterError):
        engine.adapters.unload("a")
    engine.assert_nothing_is_held()


def test_a_fork_has_the_adapter_of_its_parent(
    engine: TinyEngine, paths: list[Path]
) -> None:
    engine.adapters.load("a", paths[0])
    wanted = engine.run(PROMPT, greedy(6), WITH_A)
    parent = engine.submit(PROMPT, greedy(6), options=WITH_A)
    engine.step()
    [fork] = engine.fork(parent)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert {output.request_id for output in outputs} == {parent, fork}
    assert {output.token_ids for output in outputs} == {wanted.token_ids}


def hits(engine: TinyEngine, options: RequestOptions) -> int:
    return engine.run(PROMPT, greedy(1), options).usage.cached_tokens


def test_two_adapters_of_one_name_never_share(
    engine: TinyEngine, paths: list[Path]
) -> None:
    engine.adapters.load("a", paths[0])
    first = engine.run(PROMPT, greedy(3), WITH_A)
    assert hits(engine, WITH_A) > 32
    engine.adapters.load("a", paths[1], reload=True)
    other = engine.run(PROMPT, greedy(3), WITH_A)
    assert other.usage.cached_tokens == 0
    assert other.miss_reason is not None
    assert other.miss_reason.kind is MissKind.OTHER_FINGERPRINT
    assert other.miss_reason.differing_fields == ("adapter",)
    engine.adapters.load("a", paths[0], reload=True)
    again = engine.run(PROMPT, greedy(3), WITH_A)
    assert again.usage.cached_tokens > 32
    assert again.token_ids == first.token_ids


def test_neither_salt_nor_domain_can_be_taken_for_an_adapter(
    engine: TinyEngine, paths: list[Path]
) -> None:
    engine.adapters.load("a", paths[0])
    digest = engine.adapters.get("a").digest
    requests = [
        RequestOptions(adapter="a"),
        RequestOptions(),
        RequestOptions(domain=Domain("local", salt=b"a")),
        RequestOptions(domain=Domain("local", salt=digest)),
        RequestOptions(domain=Domain("local", salt=digest.hex().encode())),
        RequestOptions(domain=Domain("local/a")),
        RequestOptions(domain=Domain("a")),
        RequestOptions(domain=Domain("a"), adapter="a"),
        RequestOptions(domain=Domain("local", salt=b"a"), adapter="a"),
        RequestOptions(domain=Domain("org_1", salt=b"2345")),
        RequestOptions(domain=Domain("org_12345")),
        RequestOptions(domain=Domain("b", salt=b"ac")),
        RequestOptions(domain=Domain("ba", salt=b"c")),
    ]
    assert [hits(engine, options) for options in requests] == [0] * len(requests)
    assert min(hits(engine, options) for options in requests) > 32


def test_what_an_adapter_has_cached_is_dropped_by_its_digest(
    engine: TinyEngine, paths: list[Path]
) -> None:
    for name, path in zip("ab", paths, strict=True):
        engine.adapters.load(name, path)
    with_b = RequestOptions(adapter="b")
    for options in (RequestOptions(), WITH_A, with_b):
        hits(engine, options)
    engine.adapters.unload("a")
    info = engine.adapters.infos()[0]
    assert info.name == "b"
    engine.adapters.load("again", paths[0])
    [digest] = [i.digest for i in engine.adapters.infos() if i.name == "again"]
    receipt = engine.cache.invalidate(ByField(name="adapter", value=digest))
    assert receipt.num_blocks == 3
    assert hits(engine, RequestOptions(adapter="again")) == 0
    assert min(hits(engine, RequestOptions()), hits(engine, with_b)) > 32


def test_approvals_are_for_one_adapter(engine: TinyEngine, paths: list[Path]) -> None:
    engine.adapters.load("a", paths[0])
    engine.approve(PROMPT, domain=Domain("acme"), label="base")
    reader = RequestOptions(domain=Domain("acme/x"))
    assert hits(engine, reader) == 32
    assert hits(engine, replace(reader, adapter="a")) == 0


def test_a_new_host_keeps_only_what_fits(engine: TinyEngine, paths: list[Path]) -> None:
    engine.adapters.load("a", paths[0])
    engine.adapters.rebase(engine.parts.adapter_host)
    assert list(engine.adapters.names) == ["a"]
    host = engine.adapters.needed_host()
    engine.adapters.rebase(replace(host, dtype=torch.bfloat16))
    assert list(engine.adapters.names) == []


def test_an_adapter_that_does_not_fit_is_found(
    engine: TinyEngine, paths: list[Path]
) -> None:
    engine.adapters.load("a", paths[0])
    engine.adapters.host = replace(engine.adapters.needed_host(), linears={})
    with pytest.raises(InvariantError, match="does not fit"):
        engine.check_invariants()


def test_the_name_is_no_part_of_what_requests_are_fingerprint_of(
    engine: TinyEngine, paths: list[Path]
) -> None:
    for name in "ab":
        engine.adapters.load(name, paths[0])
    model = make_fingerprint(block_size=16)
    one, two = (engine.adapters.fingerprint_of(model, name) for name in "ab")
    assert one == two != engine.adapters.fingerprint_of(model, None) == model
    assert one.of_model == model
