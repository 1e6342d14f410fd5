"""handlers.torch_weights: tensors come out, and nothing of the file is run."""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from handlers import torch_weights

numpy = pytest.importorskip("numpy", reason="numpy comes with the extra ml")

HEAD = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})


class FloatStorage:
    """Stands for torch's class of that name while a checkpoint is written."""

    __module__ = "torch"


class Tensor:
    """Pickled as torch pickles one: a call of its rebuild function on a reference to a storage."""

    def __init__(self, key: str, count: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.storage = ("storage", FloatStorage, key, "cpu", count, None)
        self.view = (offset, shape, strides, False, OrderedDict())


class Writer(pickle._Pickler):  # type: ignore[name-defined]
    """Python's own pickler, because it lets names be written that cannot be imported here."""

    def save(self, value: Any, save_persistent_id: bool = True) -> None:
        if value is FloatStorage:
            self.write(b"ctorch\nFloatStorage\n")
        elif isinstance(value, Tensor):
            self.write(b"ctorch._utils\n_rebuild_tensor_v2\n(")
            super().save(value.storage)
            self.write(b"Q")
            for argument in value.view:
                super().save(argument)
            self.write(b"tR")
        else:
            super().save(value, save_persistent_id)


def checkpoint(state: Any, storages: dict[str, list[float]]) -> bytes:
    file = io.BytesIO()
    for value in (*HEAD, state, list(storages)):
        Writer(file, protocol=2).dump(value)
    for numbers in storages.values():
        file.write(struct.pack(f"<q{len(numbers)}f", len(numbers), *numbers))
    return file.getvalue()


def test_tensors_come_out_with_their_offsets_and_strides() -> None:
    state = OrderedDict(
        plain=Tensor("1", 6, 0, (2, 3), (3, 1)),
        transposed=Tensor("1", 6, 0, (3, 2), (1, 3)),
        part=Tensor("1", 6, 4, (2,), (1,)),
    )
    tensors = torch_weights.read(checkpoint(state, {"1": [0, 1, 2, 3, 4, 5]}))
    assert tensors["plain"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert tensors["part"].tolist() == [4, 5]
    assert tensors["transposed"].flags.c_contiguous


@pytest.mark.parametrize(
    "tensor",
    [Tensor("1", 2, 0, (3,), (1,)), Tensor("1", 2, 0, (2,), (1000,)), Tensor("1", 2, -1, (1,), (1,))],
)
def test_a_tensor_outside_its_storage_is_refused(tensor: Tensor) -> None:
    with pytest.raises(ValueError, match="outside its storage"):
        torch_weights.read(checkpoint(OrderedDict(t=tensor), {"1": [0, 1]}))


class Malicious:
    """Unpickled the ordinary way, it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("position", range(5))
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, position: int) -> None:
    parts: list[Any] = [*HEAD, OrderedDict(), []]
    parts[position] = Malicious(tmp_path / "hit")
    with pytest.raises(torch_weights.UnsafePickle, match=r"asks for (io|_io)\.open; refused"):
        torch_weights.read(b"".join(pickle.dumps(part, 2) for part in parts))
    assert not (tmp_path / "hit").exists()


def test_a_reference_to_anything_but_a_storage_is_refused() -> None:
    data = b"".join(pickle.dumps(part, 2) for part in HEAD) + b"\x80\x02X\x04\x00\x00\x00evilQ."
    with pytest.raises(torch_weights.UnsafePickle, match="unknown kind"):
        torch_weights.read(data)


@pytest.mark.parametrize("cut", [0, 5, 40, 200, -1])
def test_a_file_cut_short_or_of_another_kind_is_refused(cut: int) -> None:
    whole = checkpoint(OrderedDict(t=Tensor("1", 2, 0, (2,), (1,))), {"1": [0, 1]})
    with pytest.raises(ValueError, match=r"not a PyTorch checkpoint|cut short|no table"):
        torch_weights.read(whole[:cut])
    with pytest.raises(ValueError, match="not a PyTorch checkpoint"):
        torch_weights.read(b"PK\x03\x04" + whole)
