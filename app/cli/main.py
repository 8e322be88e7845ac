"""The command `ddp-audit`: every command registered, errors turned into exit codes, heavy imports left for later."""

import sys
from typing import Final

import typer
from typer import _click

from app.cli import checking, following, housekeeping, keeping, predicting, reading, running, serving, sharing
from app.cli.client import close_clients
from app.cli.exits import CommandError, Exit
from app.cli.output import emit, note

app: Final = typer.Typer(
    name="ddp-audit",
    help="Launch multi-rank training jobs and get a numeric verdict on what distribution changed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (serving, running, reading, following, predicting, checking, housekeeping, keeping, sharing):
    module.register(app)


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
        return app(arguments, prog_name="ddp-audit", standalone_mode=False) or Exit.OK
    except _click.exceptions.ClickException as error:
        error.show()
        return Exit.USAGE
    except CommandError as error:
        return _tell(error, arguments)
    except (KeyboardInterrupt, typer.Abort):
        note("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return Exit.OK


def _tell(error: CommandError, arguments: list[str]) -> int:
    note(f"ddp-audit: {error.message}")
    if "--json" in arguments:
        emit(error.document)
    return error.code


if __name__ == "__main__":
    main()
