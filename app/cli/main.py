"""The command `ddp-audit`: every command registered, errors turned into exit codes, heavy imports left for later."""

import sys
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
)
from app.cli.client import close_clients
from app.cli.exits import CommandError, Exit, problem
from app.cli.helping import Group
from app.cli.output import emit, note, say

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
    running,
    reading,
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
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Take what stands before a command."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and leave with its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(given)
    finally:
        close_clients()
    sys.exit(int(code))


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="ddp-audit", standalone_mode=False) or Exit.OK
    except typer.TyperException as error:
        if show := getattr(error, "show", None):  # with usage and hint; the public base class has no such method
            show()
        else:
            note(f"ddp-audit: {error.format_message()}")
        return _answer(problem(Exit.USAGE, error.format_message()), Exit.USAGE, arguments)
    except CommandError as error:
        note(f"ddp-audit: {error.message}")
        return _answer(error.document, error.code, arguments)
    except (KeyboardInterrupt, typer.Abort):
        code = Exit.INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return Exit.OK
    if code == Exit.INTERRUPTED:  # the framework, too, makes a Ctrl-C this code
        note("interrupted")
        return _answer(problem(Exit.INTERRUPTED, "interrupted"), Exit.INTERRUPTED, arguments)
    return code


def _answer(document: dict[str, Any], code: int, arguments: list[str]) -> int:
    """Print what went wrong where a program waits for one document, and return the exit code."""
    if "--json" in arguments:
        emit(document)
    return code


if __name__ == "__main__":
    main()
