"""Robust standard streams: closed, full, without a reader, or with an encoding that cannot represent a text."""

import codecs
import io
import os
import select
import sys
from typing import Any, Final, TextIO

INPUT, ANSWER, ASIDE = 0, 1, 2
"""Descriptors of standard input, output and error."""
SPELLED: Final = "ddp-audit-spelled"
"""Name of the error handler that spells out characters an encoding cannot represent."""
PLAIN: Final = {
    "\N{MIDDLE DOT}": "-",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{MINUS SIGN}": "-",
    "\N{INFINITY}": "inf",
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{REPLACEMENT CHARACTER}": "?",
}
"""Symbols used by the product; any other character becomes its escape, as Python writes it."""


class OutputFailed(OSError):
    """Standard output cannot be written: it is full or closed."""


class _Descriptor(io.FileIO):
    """A standard stream that this process did not open and does not close."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)

    def put(self, data: Any) -> int:
        """Write as the base class does, but wait if another process has made the descriptor non-blocking."""
        while (written := super().write(data)) is None:
            select.select([], [self], [])
        return written


class Answer(_Descriptor):
    """Standard output. Only its first failure is raised; a reader that has gone away is not a failure."""

    def __init__(self) -> None:
        super().__init__(ANSWER)
        self.gone = False
        """Whether the reader has closed its side."""
        self._failed = False

    def write(self, data: Any) -> int:
        """Write bytes. Raises OutputFailed at the first failure; later bytes are dropped."""
        size = memoryview(data).nbytes
        if self.gone or self._failed:
            return size
        try:
            return self.put(data)
        except BrokenPipeError:
            self.gone = True
            return size
        except OSError as error:
            self._failed = True
            raise OutputFailed(error.errno, error.strerror) from None


class Aside(_Descriptor):
    """Standard error: text that cannot be written is dropped without consequences."""

    def write(self, data: Any) -> int:
        """Write bytes if possible."""
        try:
            return self.put(data)
        except OSError:
            return memoryview(data).nbytes


def take_over() -> None:
    """Install standard streams that always exist and that fail as described above. Call it first."""
    _fill(INPUT, os.O_RDONLY)
    _fill(ANSWER, os.O_RDONLY)  # writing fails there as on a closed descriptor
    _fill(ASIDE, os.O_WRONLY)
    if sys.stdin is None:
        sys.stdin = open(INPUT, closefd=False)  # noqa: SIM115  # a descriptor, for as long as the process lives
    sys.stdout = _text(Answer(), sys.stdout)
    sys.stderr = _text(Aside(ASIDE), sys.stderr)


def _fill(number: int, flags: int) -> None:
    """Open the null device for closed streams: otherwise the next opened file would become a standard stream."""
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, flags)
        os.dup2(opened, number)
        if opened != number:
            os.close(opened)


def _text(raw: _Descriptor, before: TextIO | None) -> TextIO:
    encoding = None if before is None else before.encoding
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, SPELLED, line_buffering=raw.isatty() or isinstance(raw, Aside)
    )


def listening() -> bool:
    """Return whether standard output may still have a reader."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not (isinstance(raw, Answer) and raw.gone)


def narrow(stream: TextIO) -> bool:
    """Return whether a stream cannot encode every character."""
    return stream.encoding is not None and codecs.lookup(stream.encoding).name != "utf-8"


def spelled(text: str, encoding: str) -> str:
    """Return a text with characters that `encoding` cannot represent spelled out."""
    return text.encode(encoding, SPELLED).decode(encoding)


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter) or ascii(letter)[1:-1] for letter in letters), error.end


codecs.register_error(SPELLED, _spell)
