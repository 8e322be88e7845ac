"""The command `ddp-audit`: registers every command, turns errors into exit codes, and defers heavy imports."""

import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from typing import Annotated, Any, Final

import typer

from app.cli import (
    checking,
    data,
    editing,
    exporting,
    housekeeping,
    logs,
    predicting,
    reading,
    running,
    serving,
    sharing,
    status,
    storage,
    targets,
    tracing,
)
from app.cli.client import close_clients
from app.cli.exits import CommandError, Exit, of_database, problem
from app.cli.helping import Group
from app.cli.output import emit, note, readable, say
from app.streams import OutputFailed, take_over

app: Final = typer.Typer(
    name="ddp-audit",
    cls=Group,
    help="Launch multi-rank training jobs and get a numeric verdict on what distribution changed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
MODULES: Final = (
    serving,
    tracing,
    running,
    reading,
    targets,
    editing,
    logs,
    data,
    exporting,
    predicting,
    checking,
    housekeeping,
    storage,
    sharing,
    status,
)
for module in MODULES:
    module.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"ddp-audit {metadata.version('ddp-audit')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle options given before a command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its exit code; without `arguments`, the command of this process's command line."""
    if arguments is None:
        take_over()
        arguments = sys.argv[1:]
    try:
        code = _run(arguments)
    finally:
        close_clients()
    sys.exit(int(code))


def _run(arguments: Sequence[str]) -> int:
    """Return the command's exit code; every error is reported."""
    try:
        code = app(_readable(arguments), prog_name="ddp-audit", standalone_mode=False) or Exit.OK
        sys.stdout.flush()
    except typer.TyperException as error:
        if show := getattr(error, "show", None):  # with usage and hint; the public base class has no such method
            show(sys.stderr)
        else:
            note(f"ddp-audit: {error.format_message()}")
        return _answer(problem(Exit.USAGE, error.format_message()), Exit.USAGE, arguments)
    except CommandError as error:
        note(f"ddp-audit: {error.message}")
        return _answer(error.document, error.code, arguments)
    except (KeyboardInterrupt, typer.Abort):
        code = Exit.INTERRUPTED
    except OutputFailed as error:
        note(f"ddp-audit: standard output cannot be written: {error.strerror}")
        return Exit.FAILED
    except Exception as error:  # Python would exit with 1, which means that an audit did not pass
        message = of_database(error)
        if message:
            note(f"ddp-audit: {message}")
        else:
            traceback.print_exc()
        return _answer(problem(Exit.FAILED, message or f"{type(error).__name__}: {error}"), Exit.FAILED, arguments)
    if code == Exit.INTERRUPTED:  # the framework also turns Ctrl-C into this code
        note("interrupted")
        return _answer(problem(Exit.INTERRUPTED, "interrupted"), Exit.INTERRUPTED, arguments)
    return code


def _readable(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as text. Raises CommandError for an argument that is not text."""
    return [readable(text, f"argument {place}") for place, text in enumerate(arguments, start=1)]


def _answer(document: dict[str, Any], code: int, arguments: Sequence[str]) -> int:
    """Print an error as the one JSON document with `--json`, else as text, and return the exit code."""
    with suppress(OutputFailed):  # the exit code reports the first error
        if "--json" in arguments:
            emit(document)
        sys.stdout.flush()
    return code


if __name__ == "__main__":
    main()
