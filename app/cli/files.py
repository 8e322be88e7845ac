"""Files that commands write: piece by piece, renamed into place when complete, or to standard output."""

import codecs
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.exits import CommandError, Exit
from app.cli.output import emit, escaped, say, shown
from app.streams import listening, narrow

Output = Annotated[Path | None, typer.Option("-o", "--output", help="File to write; without it, standard output.")]
Write = Callable[[bytes], object]
Fetch = Callable[[Write], None]
"""Calls the given function with every piece of a file, in order."""


def hand_over(fetch: Fetch, output: Path | None, document: dict[str, Any], *, as_json: bool, text: bool = True) -> None:
    """Write what `fetch` delivers to a file or to standard output.

    With `as_json` one document is printed: `document` with the file's name and size, or its content.
    Raises CommandError: if the file cannot be written, and for binary content without a file to write it to.
    """
    if output is not None:
        length = save(fetch, output)
        if as_json:
            emit({**document, "file": str(output), "bytes": length})
        else:
            say(f"{output}: {length} bytes")
    elif as_json:
        if not text:
            raise CommandError(Exit.USAGE, "use -o FILE: this file is not text, a JSON document cannot hold it")
        pieces: list[bytes] = []
        fetch(pieces.append)
        emit({**document, "content": b"".join(pieces).decode(errors="replace")})
    else:
        _print(fetch, text=text)


def save(fetch: Fetch, path: Path) -> int:
    """Write what `fetch` delivers to a file and return its size in bytes.

    Raises CommandError; `path` is then unchanged.
    """
    length = 0
    with _new_file(path) as write:

        def count(piece: bytes) -> None:
            nonlocal length
            write(piece)
            length += len(piece)

        fetch(count)
    return length


@contextmanager
def _new_file(path: Path) -> Iterator[Write]:
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():  # a pipe or a device is written to, never replaced
            with target.open("wb") as handle:
                yield handle.write
            return
        aside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with aside.open("xb") as handle:
                yield handle.write
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(Exit.FAILED, f"{path} cannot be written: {error.strerror}") from None


def to_output(fetch: Fetch, *, document: bool = False) -> None:
    """Write what `fetch` delivers to standard output, byte for byte, until its reader closes it.

    With `document` it is a JSON document, written in characters that standard output can encode.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace") if document and narrow(sys.stdout) else None

    def write(piece: bytes) -> None:
        sys.stdout.buffer.write(piece if decoder is None else escaped(decoder.decode(piece)))
        if not listening():
            raise BrokenPipeError

    with suppress(BrokenPipeError):
        fetch(write)
    sys.stdout.flush()


def _print(fetch: Fetch, *, text: bool) -> None:
    if not sys.stdout.isatty():
        to_output(fetch)
        return
    if not text:
        raise CommandError(Exit.USAGE, "use -o FILE: this file is not text, it is not written to a terminal")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a piece may end within a character
    fetch(lambda piece: sys.stdout.write(shown(decoder.decode(piece))))
    sys.stdout.write("\n")
