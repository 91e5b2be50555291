"""The weights digest: what a model's weights contain, whatever they are called.

A digest is a tree, so that two threads share the work of one large file::

    leaf   = BLAKE2b of 16 MiB of bytes
    file   = digest(size, leaves)
    tensor = digest(name, dtype, shape, leaves)
    model  = digest(its files in name order), or digest(its tensors in name order)

A file counts by its place in the order and not by its path, so a copy elsewhere is the
same model. Files are preferred to tensors because they need no loaded model and can be
remembered from one start to the next.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import torch

from prefold.engine.digest_memory import DigestMemory, FileStamp
from prefold.errors import ConfigError
from prefold.identity.encoding import DIGEST_BYTES, digest

#: Called with the bytes digested so far and in all, by the caller's own thread.
DigestProgress: TypeAlias = Callable[[int, int], None]

#: Part of every digest: it decides which bytes make a leaf.
_LEAF_BYTES = 16 * 2**20
_NUM_THREADS = 2

#: In the order in which transformers prefers them; only the first that exists is loaded.
_FILES_AND_INDEXES = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)


def find_weight_files(model_path: Path) -> tuple[Path, ...]:
    """Return the files that transformers loads weights from, in a local directory.

    With several of them their index comes first: it decides which file's copy of a
    tensor is taken. Empty if this is no directory or its weights are in none of the
    usual files; then only the loaded model can say what they are.

    Raises:
        ConfigError: The index cannot be read.
    """
    for single, index in _FILES_AND_INDEXES:
        if (model_path / single).is_file():
            return (model_path / single,)
        if (model_path / index).is_file():
            return (model_path / index, *_read_index(model_path / index))
    return ()


def stamp_weights(model_path: Path) -> tuple[FileStamp, ...]:
    """Return what shows whether a local model's weights are still the same files.

    Raises:
        ConfigError: A file cannot be read.
    """
    return tuple(_stamp(path) for path in find_weight_files(model_path))


def digest_weights(
    model: torch.nn.Module,
    model_path: Path | None,
    memory: DigestMemory,
    *,
    rehash: bool = False,
    progress: DigestProgress | None = None,
) -> bytes:
    """Return the digest of what ``model`` was loaded from, or else of the model itself.

    Args:
        model: Loaded, with every weight that its files hold and no other.
        model_path: The local directory it was loaded from, if it was one.
        memory: As for ``digest_weight_files``.
        rehash: As for ``digest_weight_files``.
        progress: Told about everything that is read.

    Raises:
        ConfigError: As for ``digest_weight_files`` and ``digest_state``.
    """
    files = find_weight_files(model_path) if model_path is not None else ()
    if files:
        return digest_weight_files(files, memory, rehash=rehash, progress=progress)
    return digest_state(model.state_dict(), progress=progress)


def digest_weight_files(
    files: Iterable[Path],
    memory: DigestMemory,
    *,
    rehash: bool = False,
    progress: DigestProgress | None = None,
) -> bytes:
    """Return the digest of the weights in ``files``, in the order given.

    Args:
        files: As ``find_weight_files`` returns them.
        memory: Answers for unchanged files, and keeps what is found out about others.
        rehash: Read every file, whatever is remembered.
        progress: Told about the files that are read.

    Raises:
        ConfigError: A file cannot be read, or changes while it is.
    """
    stamps = {path: _stamp(path) for path in files}
    # Asked before reading: a file that is settled now cannot change unseen afterwards.
    settled = {path for path, stamp in stamps.items() if memory.is_settled(stamp)}
    values = {} if rehash else memory.recall(stamps)
    unread = {path: stamp for path, stamp in stamps.items() if path not in values}
    count = _Counter(sum(stamp.size for stamp in unread.values()), progress)
    with _threads() as executor:
        for path, stamp in unread.items():
            values[path] = _digest_file(path, stamp, executor, count)
    memory.keep({unread[path]: values[path] for path in unread if path in settled})
    return digest("weights-files", *(values[path] for path in stamps))


def digest_state(
    state: Mapping[str, torch.Tensor], *, progress: DigestProgress | None = None
) -> bytes:
    """Return the digest of a loaded model's state, as ``state_dict()`` gives it.

    Tensors that share their memory are read once.

    Raises:
        ConfigError: A tensor has no data (it is on the meta device).
    """
    views: dict[tuple[object, ...], torch.Tensor] = {}
    for name, tensor in state.items():
        if tensor.is_meta:
            raise ConfigError(f"the weights of {name} are not loaded")
        views.setdefault(_memory_of(tensor), tensor)
    count = _Counter(sum(tensor.nbytes for tensor in views.values()), progress)
    with _threads() as executor:
        leaves = {
            memory: _tensor_leaves(tensor, executor, count)
            for memory, tensor in views.items()
        }
    return digest(
        "weights-state",
        *(
            (name, str(tensor.dtype), tuple(tensor.shape), leaves[_memory_of(tensor)])
            for name, tensor in sorted(state.items())
        ),
    )


class _Counter:
    """Counts bytes for a progress callback."""

    __slots__ = ("_done", "_progress", "_total")

    def __init__(self, total: int, progress: DigestProgress | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._progress is not None:
            self._progress(self._done, self._total)


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Give an executor that forgets its queue when left by an exception or Ctrl-C."""
    executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="prefold-digest")
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _digest_file(
    path: Path, stamp: FileStamp, executor: ThreadPoolExecutor, count: _Counter
) -> bytes:
    def read_leaf(start: int) -> bytes:
        wanted = min(_LEAF_BYTES, stamp.size - start)
        data = bytearray(wanted)
        # A read may return less than asked for, and nothing at the end of the file.
        view, num_read = memoryview(data), 0
        while num_read < wanted:
            got = os.preadv(descriptor, [view[num_read:]], start + num_read)
            if got == 0:
                raise _changed(path)
            num_read += got
        return _leaf(data)

    leaves: list[bytes] = []
    try:
        with path.open("rb", buffering=0) as file:
            descriptor = file.fileno()
            starts = range(0, stamp.size, _LEAF_BYTES)
            for start, leaf in zip(starts, executor.map(read_leaf, starts), strict=True):
                leaves.append(leaf)
                count.add(min(_LEAF_BYTES, stamp.size - start))
    except OSError as exc:
        raise ConfigError(f"cannot read the weights {path}: {exc.strerror}") from exc
    if _stamp(path) != stamp:
        raise _changed(path)
    return digest("weights-file", stamp.size, tuple(leaves))


def _tensor_leaves(
    tensor: torch.Tensor, executor: ThreadPoolExecutor, count: _Counter
) -> tuple[bytes, ...]:
    flat = tensor.detach().reshape(-1).view(torch.uint8)

    def copy_leaf(start: int) -> bytes:
        # Moved to the host one leaf at a time, never a whole model at once.
        return _leaf(flat[start : start + _LEAF_BYTES].cpu().numpy().data)

    leaves = tuple(executor.map(copy_leaf, range(0, flat.numel(), _LEAF_BYTES)))
    count.add(flat.numel())
    return leaves


def _memory_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what two tensors have in common exactly if they show the same memory."""
    place = (tensor.device, tensor.data_ptr(), tensor.dtype)
    return (*place, tuple(tensor.shape), tensor.stride())


def _leaf(data: bytearray | memoryview) -> bytes:
    # The one digest that is not made from an encoding: it is a single field of bytes,
    # and framing it would copy it. Its size stands in the encoding above it.
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=b"weights-leaf").digest()


def _stamp(path: Path) -> FileStamp:
    try:
        return FileStamp.of(path)
    except OSError as exc:
        raise ConfigError(f"cannot read the weights {path}: {exc.strerror}") from exc


def _changed(path: Path) -> ConfigError:
    return ConfigError(f"{path} changed while it was read; try again once it is complete")


def _read_index(index: Path) -> Sequence[Path]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(weight_map.values()))
        return [index.parent / name for name in names]
    except OSError as exc:
        raise ConfigError(f"cannot read {index}: {exc.strerror}") from exc
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ConfigError(f"{index} is no index of weight files") from exc
