"""How commands speak: tables or one JSON document on standard output, everything else on standard error."""

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from app.formats import size

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
TIMES = frozenset({"at", "created", "finished", "finished_at", "last_seen", "next"})
"""Columns that show moments; a name that looks like one stays as it is."""
UNFOLDED = 10_000
"""Characters of a line that is written to no terminal."""
RunId = Annotated[int, typer.Argument(help="Number of the run.", metavar="ID")]


def emit(document: Any) -> None:
    """Print one JSON document on a line of its own."""
    import orjson

    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line for a person."""
    sys.stdout.write(f"{shown(text)}\n")


def note(text: str) -> None:
    """Print a line beside the answer."""
    sys.stderr.write(f"{shown(text)}\n")
    sys.stderr.flush()


def shown(text: str) -> str:
    """Return text without control characters: what a run or a file says must not steer the terminal."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", *, named: Sequence[str] = ()) -> None:
    """Print a table, or that there is nothing to list.

    None is a dash, a column `bytes` shows sizes, and one of `TIMES` times of this machine's zone with their offset.
    Columns of `named` follow the others, with the names of parameters or checks as headings, kept as they are.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    if not rows:
        say(f"{title or columns[0].replace('_', ' ')}: none")
        return
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    drawn = Table(title=title or None, title_justify="left", **look)
    writers = [size if column == "bytes" else local_time if column in TIMES else cell for column in columns]
    writers += [cell] * len(named)
    for column in columns:
        drawn.add_column("size" if column == "bytes" else column.replace("_", " "), overflow="fold")
    for name in named:
        drawn.add_column(Text(shown(name)), overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(shown(write(value))) for write, value in zip(writers, row, strict=True)))
    # Folded cells suit a terminal; a pipe gets every row on one line.
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
    """Return a moment of the API in this machine's zone, with the offset that held then: clocks are turned back."""
    if value is None:
        return cell(None)
    return datetime.fromisoformat(value).astimezone().isoformat(sep=" ", timespec="seconds")


def passed_word(passed: bool | None) -> str:
    """Return how a check's outcome reads."""
    return "not judged" if passed is None else "pass" if passed else "FAIL"
