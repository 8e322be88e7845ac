"""Output of commands: tables or one JSON document on standard output, everything else on standard error."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from app.cli.exits import CommandError, Exit
from app.formats import size
from app.streams import narrow

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
TIMES = frozenset({"at", "created", "finished", "finished_at", "last_seen", "next"})
"""Columns that show times; other columns are never parsed as times."""
UNFOLDED = 10_000
"""Width of a line that is not written to a terminal."""
WIDE: Final = re.compile(r"[^\x00-\x7f]")
ASCII_HEAD: Final = "    \n    \n -- \n    \n    \n    \n    \n    \n"
"""A line below the column headings and no other, in the table library's notation."""
RunId = Annotated[int, typer.Argument(help="Number of the run.", metavar="ID")]


def emit(document: Any) -> None:
    """Print one JSON document on its own line, in characters that standard output can encode."""
    sys.stdout.buffer.write(encoded(document, escape=narrow(sys.stdout)))
    sys.stdout.flush()


def encoded(document: Any, *, escape: bool) -> bytes:
    """Return a JSON document as a line of UTF-8; with `escape`, every non-ASCII character is an escape sequence."""
    import orjson

    try:
        data = orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a file name that is not valid text
        data = orjson.dumps(_without_surrogates(document), option=orjson.OPT_APPEND_NEWLINE)
    return escaped(data.decode()) if escape else data


def escaped(text: str) -> bytes:
    """Return JSON, or a part of it, in ASCII.

    Only strings contain anything else, and they may contain escape sequences.
    """
    return WIDE.sub(_escape, text).encode()


def _escape(wide: "re.Match[str]") -> str:
    units = wide.group().encode("utf-16-be")
    return "".join(f"\\u{units[begin : begin + 2].hex()}" for begin in range(0, len(units), 2))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(item) for name, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


def readable(text: str, what: str) -> str:
    """Return a text from outside with its bytes read as UTF-8. Raises CommandError that names `what` it is."""
    try:
        return os.fsencode(text).decode() if any("\ud800" <= letter <= "\udfff" for letter in text) else text
    except UnicodeError:
        shown = text.encode(errors="backslashreplace").decode().replace("\\udc", "\\x")
        raise CommandError(Exit.USAGE, f"{what} is not valid UTF-8: {shown[:200]}") from None


def say(text: str, *, at_once: bool = False) -> None:
    """Print a line for a person; `at_once` flushes it, for when the next one may take a while."""
    sys.stdout.write(f"{shown(text)}\n")
    if at_once:
        sys.stdout.flush()


def note(text: str) -> None:
    """Print a line on standard error, next to the answer."""
    sys.stderr.write(f"{shown(text)}\n")
    sys.stderr.flush()


def shown(text: str) -> str:
    """Return text without control characters: text from a run or a file must not control the terminal."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", *, named: Sequence[str] = ()) -> None:
    """Print a table, or that there is nothing to list.

    None is shown as a dash, a column `bytes` as sizes, and columns of `TIMES` as local times with their offset. Columns
    of `named` follow the others; their headings are names of parameters or checks, kept unchanged.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    if not rows:
        say(f"{title or columns[0].replace('_', ' ')}: none")
        return
    lines = box.Box(ASCII_HEAD, ascii=True) if narrow(sys.stdout) else box.SIMPLE_HEAD
    look: dict[str, Any] = {"box": lines, "padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    drawn = Table(title=title or None, title_justify="left", **look)
    writers = [size if column == "bytes" else local_time if column in TIMES else cell for column in columns]
    writers += [cell] * len(named)
    for column in columns:
        drawn.add_column("size" if column == "bytes" else column.replace("_", " "), overflow="fold")
    for name in named:
        drawn.add_column(Text(shown(name)), overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(shown(write(value))) for write, value in zip(writers, row, strict=True)))
    # Cells are folded on a terminal; a pipe gets every row on one line.
    Console(file=sys.stdout, soft_wrap=False, width=None if sys.stdout.isatty() else UNFOLDED).print(drawn)


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        between = "; " if any(isinstance(item, list) for item in value) else ", "
        return between.join(cell(item) for item in value)
    return str(value)


def local_time(value: str | None) -> str:
    """Return a time of the API in the local time zone, with the offset valid then (daylight saving time)."""
    if value is None:
        return cell(None)
    return datetime.fromisoformat(value).astimezone().isoformat(sep=" ", timespec="seconds")


def passed_word(passed: bool | None) -> str:
    """Return a check's outcome as a word."""
    return "not judged" if passed is None else "pass" if passed else "FAIL"
