from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from prefold.engine import weights_digest
from prefold.engine.digest_memory import DigestMemory
from prefold.engine.weights_digest import (
    digest_state,
    digest_weight_files,
    digest_weights,
    find_weight_files,
)
from prefold.errors import ConfigError

SECOND = 10**9


class Clock:
    """Time as files tell it, moved by hand."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


class Files:
    """A directory of weights, a memory, and a count of the bytes read."""

    def __init__(self, tmp_path: Path) -> None:
        self.model = tmp_path / "model"
        self.model.mkdir()
        self.weights = self.model / "model.safetensors"
        self.memory_path = tmp_path / "state" / "digests.json"
        self.clock = Clock(0)
        self.num_read = 0

    def write(self, data: bytes, *, age_s: float = 60.0) -> None:
        self.weights.write_bytes(data)
        self.settle(age_s)

    def settle(self, age_s: float = 60.0) -> None:
        status = self.weights.stat()
        newest = max(status.st_mtime_ns, status.st_ctime_ns)
        self.clock.now_ns = newest + int(age_s * SECOND)

    def digest(self, *, rehash: bool = False) -> bytes:
        self.num_read = 0
        memory = DigestMemory(self.memory_path, now_ns=self.clock)
        files = find_weight_files(self.model)
        return digest_weight_files(files, memory, rehash=rehash, progress=self._count)

    def _count(self, done: int, total: int) -> None:
        assert done <= total
        self.num_read = done


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_an_unchanged_file_is_read_once(files: Files) -> None:
    files.write(b"x" * 1000)
    first = files.digest()
    assert files.num_read == 1000
    assert files.digest() == first
    assert files.num_read == 0


def test_rehash_never_trusts_the_memory(files: Files) -> None:
    files.write(b"x" * 1000)
    first = files.digest()
    document = json.loads(files.memory_path.read_text())
    document["files"][0]["digest"] = "00" * 32
    files.memory_path.write_text(json.dumps(document))
    assert files.digest() != first  # the memory is believed
    assert files.digest(rehash=True) == first
    assert files.num_read == 1000
    assert files.digest() == first  # and is put right
    assert files.num_read == 0


def test_a_young_file_is_read_anew_and_not_remembered(files: Files) -> None:
    files.write(b"x" * 1000, age_s=1.9)
    files.digest()
    assert not files.memory_path.exists()
    files.settle(2.0)
    files.digest()
    assert files.num_read == 1000
    files.digest()
    assert files.num_read == 0
    # A clock that was set back makes it young again.
    files.settle(-5.0)
    files.digest()
    assert files.num_read == 1000


@pytest.mark.parametrize(
    "name", ["size", "mtime_ns", "ctime_ns", "inode", "device", "path"]
)
def test_every_part_of_the_stamp_counts(files: Files, name: str) -> None:
    files.write(b"x" * 1000)
    files.digest()
    document = json.loads(files.memory_path.read_text())
    [entry] = document["files"]
    entry[name] = entry[name] + ("x" if name == "path" else 1)
    files.memory_path.write_text(json.dumps(document))
    files.digest()
    assert files.num_read == 1000


def test_a_change_that_restores_size_and_mtime_is_seen(files: Files) -> None:
    files.write(b"x" * 1000)
    first = files.digest()
    status = files.weights.stat()
    files.weights.write_bytes(b"y" * 1000)
    os.utime(files.weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    files.settle()
    assert files.digest() != first


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:-10],
        lambda _: b"[" * 100_000,
        lambda _: b"\xff\xfe",
        lambda _: b"null",
        lambda _: b'{"format": 1, "files": {"a": 1}}',
        lambda _: b'{"format": 1, "files": [{}]}',
        lambda data: data.replace(b'"size": 1000', b'"size": "1000"'),
        lambda data: data.replace(b'"digest": "', b'"digest": "zz'),
        lambda data: data.replace(b'"digest": "', b'"digest": "00'),
        lambda data: data + b" " * 2**20,
    ],
)
def test_a_damaged_memory_is_noted_and_rewritten(
    files: Files, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    files.write(b"x" * 1000)
    first = files.digest()
    files.memory_path.write_bytes(damage(files.memory_path.read_bytes()))
    assert files.digest() == first
    assert files.num_read == 1000
    assert "damaged" in caplog.text
    assert files.digest() == first
    assert files.num_read == 0


def test_a_memory_of_another_format_is_replaced_without_a_word(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(b"x")
    files.memory_path.parent.mkdir()
    files.memory_path.write_text('{"format": 2, "files": "of another kind"}')
    files.digest()
    files.digest()
    assert files.num_read == 0
    assert caplog.text == ""


def test_a_memory_that_cannot_be_written_does_no_harm(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(b"x")
    files.memory_path.parent.write_text("a file where a directory is needed")
    first = files.digest()
    assert files.digest() == first
    assert "cannot remember" in caplog.text


def test_the_memory_forgets_files_that_are_gone_and_leaves_no_partial(
    files: Files, tmp_path: Path
) -> None:
    files.write(b"x")
    files.digest()
    moved = files.model.rename(tmp_path / "elsewhere")
    files.model, files.weights = moved, moved / "model.safetensors"
    files.settle()
    files.digest()
    document = json.loads(files.memory_path.read_text())
    assert [entry["path"] for entry in document["files"]] == [str(files.weights)]
    assert [path.name for path in files.memory_path.parent.iterdir()] == ["digests.json"]


def test_equal_contents_have_equal_digests_wherever_they_are(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files = Files(tmp_path / name)
        files.write(b"the same")
        digests.append(files.digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize("leaf_bytes", [4, 7, 16])
def test_every_byte_counts_in_files_of_any_length(
    files: Files, monkeypatch: pytest.MonkeyPatch, leaf_bytes: int
) -> None:
    monkeypatch.setattr(weights_digest, "_LEAF_BYTES", leaf_bytes)
    contents = [bytes(length) for length in range(20)]
    contents += [bytes(i) + b"\x01" + bytes(18 - i) for i in range(19)]
    seen = set()
    for content in contents:
        files.write(content)
        seen.add(files.digest(rehash=True))
        assert files.num_read == len(content)
    assert len(seen) == len(contents)


def test_a_file_that_changes_while_it_is_read_is_refused(files: Files) -> None:
    files.write(b"x" * 1000)
    memory = DigestMemory(files.memory_path, now_ns=files.clock)

    def change(_done: int, _total: int) -> None:
        files.weights.write_bytes(b"y" * 1000)

    with pytest.raises(ConfigError, match="changed while it was read"):
        digest_weight_files([files.weights], memory, progress=change)
    assert not files.memory_path.exists()


def test_a_missing_file_is_a_sentence(files: Files, tmp_path: Path) -> None:
    memory = DigestMemory(files.memory_path)
    with pytest.raises(ConfigError, match="cannot read the weights"):
        digest_weight_files([tmp_path / "none.safetensors"], memory)


def write_shards(directory: Path, weight_map: dict[str, str]) -> None:
    for name in sorted(set(weight_map.values())):
        (directory / name).write_bytes(name.encode())
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_those_of_the_index_in_name_order(tmp_path: Path) -> None:
    write_shards(
        tmp_path, {"b": "m-2.safetensors", "a": "m-2.safetensors", "c": "m-1.safetensors"}
    )
    (tmp_path / "unused.safetensors").write_bytes(b"")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    names = [path.name for path in find_weight_files(tmp_path)]
    assert names == ["model.safetensors.index.json", "m-1.safetensors", "m-2.safetensors"]


def test_one_file_goes_before_shards_and_older_forms(tmp_path: Path) -> None:
    assert find_weight_files(tmp_path) == ()
    assert find_weight_files(tmp_path / "no-such") == ()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert [path.name for path in find_weight_files(tmp_path)] == ["pytorch_model.bin"]
    write_shards(tmp_path, {"a": "m.safetensors"})
    assert find_weight_files(tmp_path)[1].name == "m.safetensors"
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert [path.name for path in find_weight_files(tmp_path)] == ["model.safetensors"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}']
)
def test_a_damaged_index_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ConfigError, match="no index of weight files"):
        find_weight_files(tmp_path)


def make_state() -> dict[str, torch.Tensor]:
    return {
        "b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "a": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0),
    }


def test_the_state_counts_with_names_types_shapes_and_bytes() -> None:
    state = make_state()
    changes = [
        {},
        {"b": state["b"] + torch.tensor([[0, 0, 0], [0, 0, 1]])},
        {"b": state["b"].reshape(3, 2)},
        {"b": state["b"].view(torch.int32)},
        {"a": state["a"].view(torch.float16)},
        {"scalar": torch.tensor([3])},
        {"empty": torch.zeros(1)},
        {"more": torch.zeros(0)},
    ]
    digests = {digest_state(state | change) for change in changes}
    renamed = {("c" if name == "b" else name): value for name, value in state.items()}
    assert len(digests | {digest_state(renamed)}) == len(changes) + 1


def test_neither_order_nor_memory_layout_of_the_state_counts() -> None:
    state = make_state()
    turned = dict(reversed(state.items()))
    turned["b"] = state["b"].t().contiguous().t()
    assert not turned["b"].is_contiguous()
    assert digest_state(turned) == digest_state(state)


def test_tied_tensors_are_read_once_and_count_like_copies() -> None:
    tensor = torch.arange(8.0)
    seen = []
    tied = digest_state(
        {"a": tensor, "b": tensor}, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(32, 32)]
    assert digest_state({"a": tensor, "b": tensor.clone()}) == tied
    # Same memory, another part or shape of it.
    assert digest_state({"a": tensor[:4], "b": tensor}) != digest_state(
        {"a": tensor, "b": tensor[:4]}
    )


def test_a_state_without_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="not loaded"):
        digest_state({"a": torch.zeros(3, device="meta")})


def test_files_are_preferred_to_the_loaded_model(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    memory = DigestMemory(tmp_path / "digests.json")
    from_state = digest_weights(model, None, memory)
    assert digest_weights(model, tmp_path, memory) == from_state
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    assert digest_weights(model, tmp_path, memory) != from_state
