"""Tensor files on disk: members of the archive and types of its tensors, without torch or unpickling."""

import pickletools
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from os import SEEK_END
from pathlib import Path
from typing import IO, Any, Final, Self
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
"""Signature, then the lengths of name and extra field of a member, whose bytes follow them."""
STAMP_LIMIT: Final = 1 << 26
"""Maximum bytes read of a stamp: far more than the tensor names of any model need."""
PICKLE_LIMIT: Final = 1 << 22
"""Maximum bytes of a pickle that is tokenised, which takes about two seconds; larger ones are checked by loading."""
STORAGES: Final = {
    "torch BFloat16Storage": "bfloat16",
    "torch BoolStorage": "bool",
    "torch ByteStorage": "uint8",
    "torch CharStorage": "int8",
    "torch ComplexDoubleStorage": "complex128",
    "torch ComplexFloatStorage": "complex64",
    "torch DoubleStorage": "float64",
    "torch FloatStorage": "float32",
    "torch HalfStorage": "float16",
    "torch IntStorage": "int32",
    "torch LongStorage": "int64",
    "torch ShortStorage": "int16",
}


class ArchiveInvalid(ValueError):
    """The file is not an archive of tensors, or lacks the requested member."""


class TensorArchive:
    """A file written by `torch.save`, open for reading."""

    def __init__(self, handle: IO[bytes], members: ZipFile) -> None:
        self._handle, self._members = handle, members

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open a file. Raises OSError, ArchiveInvalid."""
        with path.open("rb") as handle:
            try:
                members = ZipFile(handle)
            except (BadZipFile, ValueError, struct.error, NotImplementedError) as error:
                raise ArchiveInvalid(f"not an archive of tensors: {error}") from None
            with members:
                yield cls(handle, members)

    def first_storage(self) -> bytes:
        """Return the bytes of the tensor that was saved first. Raises ArchiveInvalid."""
        return self._bytes(self._member("data/0"), STAMP_LIMIT)

    def tensor_types(self) -> list[str] | None:
        """Return the type of every tensor in the order they were saved, such as `float32`, empty for an unknown type.

        None for content that is too large, or written in another way. Raises ArchiveInvalid.
        """
        member = self._member("data.pkl")
        if member.file_size > PICKLE_LIMIT:
            return None
        return pickled_types(self._bytes(member, PICKLE_LIMIT))

    def _member(self, name: str) -> ZipInfo:
        listed = self._members.infolist()
        root = listed[0].filename.partition("/")[0] if listed else ""
        try:
            return self._members.getinfo(f"{root}/{name}")
        except KeyError:
            raise ArchiveInvalid(f"not an archive of tensors: it has no {name}") from None

    def _bytes(self, member: ZipInfo, limit: int) -> bytes:
        # Not through `ZipFile.read`: checkpoints are written without the archive's own checksums, which it requires.
        if member.compress_type != ZIP_STORED or member.file_size > limit:
            raise ArchiveInvalid(f"{member.filename} is compressed, or larger than {limit} bytes")
        end = self._handle.seek(0, SEEK_END)
        self._handle.seek(min(max(0, member.header_offset), end))  # the archive may state any number
        head = self._handle.read(LOCAL_HEADER.size)
        if len(head) < LOCAL_HEADER.size or not head.startswith(b"PK\x03\x04"):
            raise ArchiveInvalid(f"{member.filename} is not where the archive says")
        _, name, extra = LOCAL_HEADER.unpack(head)
        self._handle.seek(name + extra, 1)
        return self._handle.read(member.file_size)


def pickled_types(pickle: bytes) -> list[str] | None:
    """Return the type of every tensor a pickle holds, in order; None if it cannot be read in this way.

    The pickle is split into tokens and never executed: a tensor is a persistent id after the name of its storage
    class, or after the memo of that name.
    """
    memo: dict[Any, str] = {}
    types: list[str] = []
    named = current = ""
    try:
        for token, argument, _ in pickletools.genops(pickle):
            if token.name in {"BINPUT", "LONG_BINPUT"} and named:
                memo[argument] = named
            elif token.name in {"BINGET", "LONG_BINGET"}:
                current = memo.get(argument, current)
            elif token.name == "BINPERSID":
                types.append(current)
                current = ""
            named = STORAGES.get(str(argument), "") if token.name == "GLOBAL" else ""
            current = named or current
    except (ValueError, UnicodeDecodeError):
        return None
    return types
