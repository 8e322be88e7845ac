"""How commands speak: tables or one JSON document on standard output, everything else on standard error."""

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
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


def log_to_stderr() -> None:
    """Keep log lines out of the answer on standard output, and those that only reassure out of sight."""
    import logging

    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a table; None is a dash."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title or None, title_justify="left")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(shown(cell(value))) for value in row))
    Console(file=sys.stdout, soft_wrap=False).print(drawn)


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(cell(item) for item in value)
    return str(value)


def passed_word(passed: bool | None) -> str:
    """Return how a check's outcome reads."""
    return "not judged" if passed is None else "pass" if passed else "FAIL"
