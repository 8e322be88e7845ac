"""Tensor files read without torch: the types are torch's own, and a damaged file is reported, not a crash."""

import io
import random
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch

from tests.support.checkpoints import stamped_file
from trainer.contract import archive
from trainer.contract.archive import STORAGES, ArchiveInvalid, TensorArchive, pickled_types
from trainer.contract.stamp import StampInvalid, read_stamp

DAMAGES = 1000


def types_of(path: Path) -> list[str] | None:
    with TensorArchive.open(path) as members:
        return members.tensor_types()


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def test_types_are_those_of_torch(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(2, 3, dtype=getattr(torch, name)) for name in STORAGES.values()}
    content = [tensors, {"nested": [*reversed(tensors.values())]}, "torch HalfStorage", tensors["bool"].clone()]
    assert types_of(saved(tmp_path / "a.pt", content)) == [*tensors, "bool"]


def test_repeated_types_are_told_apart(tmp_path: Path) -> None:
    names = ["float32", "bfloat16", "float32", "float32", "int64", "bfloat16", "int64"]
    content = [torch.zeros(1, dtype=getattr(torch, name)) for name in names]
    assert types_of(saved(tmp_path / "a.pt", content)) == names


def test_type_without_a_storage_of_its_own_is_left_open(tmp_path: Path) -> None:
    found = types_of(saved(tmp_path / "a.pt", [torch.zeros(2, dtype=torch.float8_e4m3fn), torch.zeros(2)]))
    assert found is None or "float8_e4m3fn" not in found


def test_large_content_is_left_to_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.pt", [torch.zeros(1)])
    assert types_of(path) == ["float32"]
    monkeypatch.setattr(archive, "PICKLE_LIMIT", 16)
    assert types_of(path) is None


@pytest.mark.parametrize("data", [b"", b"\x80", b"ctorch\nFloatStorage", b"\x80\x02K\x01", b"\xff" * 9])
def test_cut_pickle_has_no_types(data: bytes) -> None:
    assert pickled_types(data) is None


def packed(method: int = 0, offset: int | None = None) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", method) as members:
        members.writestr("a/data.pkl", b"\x80\x02N.")
        members.writestr("a/data/0", b"{}" * 50)
        if offset is not None:
            members.getinfo("a/data/0").header_offset = offset
    return buffer.getvalue()


def test_first_storage(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(packed())
    with TensorArchive.open(tmp_path / "a.pt") as members:
        assert members.first_storage() == b"{}" * 50


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"text" * 99, packed(ZIP_DEFLATED), packed(offset=5), packed(offset=2**63 - 1)]
)
def test_other_files_are_no_archives(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(ArchiveInvalid), TensorArchive.open(tmp_path / "a.pt") as members:
        members.first_storage()


def test_damage_is_an_answer(tmp_path: Path) -> None:
    """For any bytes of a file, reading its stamp returns one, or reports that there is none."""
    path = tmp_path / "shared.pt"
    stamped_file(path, 4, None)
    assert read_stamp(path).step == 4
    whole, draw = path.read_bytes(), random.Random(4)
    invalid = 0
    for _ in range(DAMAGES):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 2, 8))):
            data[draw.randrange(len(data))] = draw.choice((0, 255, draw.randrange(256)))
        path.write_bytes(data[: draw.choice((len(data), draw.randrange(len(data))))])
        try:
            read_stamp(path)
        except StampInvalid:
            invalid += 1
    assert DAMAGES // 2 < invalid < DAMAGES
