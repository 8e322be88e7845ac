"""What a traced program left, taken from a folder or an archive of anywhere: copied by name, kind and size, trusted in
nothing.
"""

import json
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final
from uuid import uuid4

from app.tracing.prepare import OPTIONS, RECORDS

FILE: Final = re.compile(r"(restart_[1-9][0-9]{0,3}/)?rank(0|[1-9][0-9]{0,4})\.(jsonl|crumb|trace|ids|stacks)")
MOST_FILES: Final = 20_000
MOST_BYTES: Final = 4 << 30
"""Of all files together, unpacked."""
MOST_FILE_BYTES: Final = 256 << 20
MOST_OPTIONS_BYTES: Final = 1 << 20
PIECE: Final = 1 << 20
INCOMING: Final = ".incoming-"
"""Beginning of the names of folders that are not a run's yet."""


class NotATrace(ValueError):
    """There is nothing that could be brought in; the text says what was expected."""


class Taken:
    """Files copied from elsewhere, to become a run's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = self.bytes = self.left_out = 0
        """`left_out`: entries of other names or kinds."""

    def take(self, name: str, source: IO[bytes]) -> None:
        """Copy one file. Raises NotATrace over a limit."""
        self.files += 1
        if self.files > MOST_FILES:
            raise NotATrace(f"it holds more than {MOST_FILES} files of ranks")
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        size = 0
        with place.open("xb") as target:
            while piece := source.read(PIECE):
                size += len(piece)
                self.bytes += len(piece)
                if size > MOST_FILE_BYTES or self.bytes > MOST_BYTES:
                    raise NotATrace(
                        f"{name} is too large: a file may have {MOST_FILE_BYTES} bytes, all together {MOST_BYTES}"
                    )
                target.write(piece)

    def check(self, where: str) -> None:
        """Raise NotATrace when no rank has left a record."""
        if not any(self.folder.rglob("rank*.trace")):
            raise no_records(where)


def no_records(where: str) -> NotATrace:
    """Return the error for a place without any rank's records."""
    return NotATrace(
        f"{where} holds no record of a rank (rank0.trace …): give the folder that was prepared, after the "
        "program ran; a program whose ranks never joined a process group leaves none"
    )


@contextmanager
def incoming(runs_dir: Path) -> Iterator[Path]:
    """Yield a new folder next to the runs; it is removed at the end."""
    folder = runs_dir / f"{INCOMING}{uuid4().hex}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take_folder(source: Path, target: Path) -> tuple[Taken, dict[str, Any]]:
    """Copy a folder, prepared or only its records, and return what was copied and the parameters it was prepared with.

    Links are not followed. Raises NotATrace, OSError.
    """
    taken = Taken(target)
    for name, path in _entries(source):
        file = _regular(path) if FILE.fullmatch(name) else None
        if file is None:
            taken.left_out += not path.is_dir()
            continue
        with file:
            taken.take(name, file)
    taken.check(str(source))
    return taken, _prepared(source)


def _entries(source: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name, path) of everything next to the records of ranks. Raises NotATrace."""
    records = source / RECORDS if (source / RECORDS).is_dir() else source
    if not records.is_dir():
        raise NotATrace(f"{source} is not a directory")
    for folder in [records, *sorted(records.glob("restart_*"))]:
        for path in sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
            yield path.relative_to(records).as_posix(), path


def _prepared(source: Path) -> dict[str, Any]:
    """Return the parameters that a folder was prepared with, none where it was not."""
    file = _regular(source / OPTIONS)
    if file is None:
        return {}
    with file:
        return _options(file.read(MOST_OPTIONS_BYTES))


def _regular(path: Path) -> IO[bytes] | None:
    """Open a regular file; None for a link, a pipe that would block, and whatever else cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    return None


def pack(source: Path, archive: Path, params: dict[str, Any]) -> None:
    """Write what `take_archive` reads: the records of a folder, and its parameters with `params` over them.

    Raises NotATrace, OSError.
    """
    found = False
    with zipfile.ZipFile(archive, "x", zipfile.ZIP_DEFLATED, compresslevel=3) as packed:
        packed.writestr(OPTIONS, json.dumps({"params": {**_prepared(source), **params}}))
        for name, path in _entries(source):
            file = _regular(path) if FILE.fullmatch(name) else None
            if file is not None:
                with file, packed.open(f"{RECORDS}/{name}", "w", force_zip64=True) as entry:
                    shutil.copyfileobj(file, entry, PIECE)
                found = found or name.endswith(".trace")
    if not found:
        raise no_records(str(source))


def take_archive(archive: Path, target: Path) -> tuple[Taken, dict[str, Any]]:
    """Unpack an archive in the same way. Raises NotATrace, OSError."""
    taken, options = Taken(target), b""
    try:
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                name = str(PurePosixPath(entry.filename)).removeprefix(f"{RECORDS}/")
                if name == OPTIONS:
                    with packed.open(entry) as file:
                        options = file.read(MOST_OPTIONS_BYTES)
                elif FILE.fullmatch(name):
                    with packed.open(entry) as file:
                        taken.take(name, file)
                else:
                    taken.left_out += 1
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, NotATrace):
            raise
        raise NotATrace(f"the archive cannot be unpacked: {error}") from None
    except FileExistsError:
        raise NotATrace("the archive holds a file twice") from None
    taken.check("the archive")
    return taken, _options(options)


def _options(data: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        document = json.loads(data)
        params = document.get("params") if isinstance(document, dict) else None
        if isinstance(params, dict):
            return {str(name): value for name, value in params.items()}
    return {}
