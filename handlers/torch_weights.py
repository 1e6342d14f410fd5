"""Tensors from a PyTorch checkpoint of the old, pre-zip layout, with numpy alone.

The layout (`torch.save` before version 1.6): four pickles – a magic number, the protocol version, facts
about the machine, the object – then a pickled list of storage keys, then each storage as a 64-bit element
count and its raw little-endian elements. Tensors in the object point into the storages.

A pickle may call anything. This reader resolves four names and calls nothing that belongs to the file.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, BinaryIO

from handlers.extras import require

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_DTYPES = {"FloatStorage": "<f4", "LongStorage": "<i8"}


class UnsafePickle(pickle.UnpicklingError):
    """The file uses something that a file of weights does not need."""


@dataclass(frozen=True, slots=True)
class _StorageKind:
    dtype: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A view of a storage: `offset` and `strides` count elements, as PyTorch writes them."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor(storage: _Storage, offset: int, shape: Any, strides: Any, *_: object) -> _Tensor:
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    **{("torch", name): _StorageKind(dtype) for name, dtype in _DTYPES.items()},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise UnsafePickle(f"the file of weights asks for {module}.{name}; refused") from None

    def persistent_load(self, reference: Any) -> _Storage:
        match reference:
            case ("storage", _StorageKind(dtype), str(key), str(), int(count), None):
                return _Storage(key, dtype, count)
        raise UnsafePickle("the file of weights has a reference of an unknown kind; refused")


def read(data: bytes) -> dict[str, Any]:
    """The checkpoint's tensors by name, as numpy arrays of their own (float32 or int64).

    Raises UnsafePickle for a pickle that needs more than tensors, ValueError for any other layout.
    """
    file = io.BytesIO(data)
    try:
        magic, protocol, facts, state = (_Unpickler(file).load() for _ in range(4))
        keys = _Unpickler(file).load()
    except UnsafePickle:
        raise
    except Exception as error:
        # A pickle with invalid content can end in almost any exception.
        raise ValueError(f"not a PyTorch checkpoint of the old layout: {error}") from error
    if (magic, protocol) != (_MAGIC, _PROTOCOL) or not isinstance(facts, dict) or not facts.get("little_endian"):
        raise ValueError("not a PyTorch checkpoint of the old layout")
    if not isinstance(state, OrderedDict):
        raise ValueError("the checkpoint holds no table of tensors")
    tensors = {str(name): value for name, value in state.items() if isinstance(value, _Tensor)}
    storages = _read_storages(file, keys, {tensor.storage.key: tensor.storage for tensor in tensors.values()})
    return {name: _view(tensor, storages[tensor.storage.key]) for name, tensor in tensors.items()}


def _read_storages(file: BinaryIO, keys: list[str], known: dict[str, _Storage]) -> dict[str, Any]:
    numpy = require("numpy", extra="ml")
    arrays: dict[str, Any] = {}
    for key in keys:
        storage = known.get(key)
        if storage is None:
            raise ValueError(f"no tensor of the checkpoint uses storage {key}")
        count = int.from_bytes(file.read(8), "little")
        if count != storage.count:
            raise ValueError(f"storage {key} has {count} elements, not {storage.count}")
        dtype = numpy.dtype(storage.dtype)
        raw = file.read(count * dtype.itemsize)
        if len(raw) != count * dtype.itemsize:
            raise ValueError("the checkpoint is cut short")
        arrays[key] = numpy.frombuffer(raw, dtype)
    return arrays


def _view(tensor: _Tensor, storage: Any) -> Any:
    """The tensor as an array in C order. The bounds are checked, because `as_strided` reads anywhere."""
    numpy = require("numpy", extra="ml")
    if not tensor.shape:
        return storage[tensor.offset].copy()
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    if min(tensor.offset, *tensor.strides) < 0 or min(tensor.shape) < 1 or last >= len(storage):
        raise ValueError("a tensor of the checkpoint lies outside its storage")
    strides = [step * storage.itemsize for step in tensor.strides]
    window = numpy.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, strides, writeable=False)
    return numpy.ascontiguousarray(window)
