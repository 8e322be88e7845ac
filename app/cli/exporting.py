"""`ddp-audit export`: a run, or every run of a list, as CSV, JSON or Parquet."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.cli.client import open_client
from app.cli.exits import CommandError, Exit
from app.cli.files import Output, Write, hand_over, to_output
from app.cli.output import AsJson, say

Values = Annotated[
    list[str] | None, typer.Option(help="Filter of the list, as for `list`; may be given several times.")
]
OF_A_RUN: Final = ("metrics", "checks", "resources")
OF_A_LIST: Final = ("runs", "checks")


class Form(StrEnum):
    """Formats of an export."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export)


def export(
    run_id: Annotated[int | None, typer.Argument(help="One run; without it, the list of runs.", metavar="[ID]")] = None,
    *,
    form: Annotated[
        Form | None, typer.Option("--format", help="Default: from the file name's extension, else json.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--table", help="For one run: metrics, checks, resources; for the list: runs, checks.")
    ] = None,
    output: Output = None,
    state: Values = None,
    kind: Values = None,
    verdict: Values = None,
    tag: Values = None,
    pinned: Annotated[bool | None, typer.Option("--pinned/--not-pinned", help="Filter of the list.")] = None,
    q: Annotated[
        str | None, typer.Option("-q", "--query", help="Filter of the list: part of a name, note or tag.")
    ] = None,
    sort: Annotated[str | None, typer.Option(help="Order of the list, as for `list`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Export one run, or every run that `list` would show, as CSV, JSON or Parquet.

    With --json and without -o a JSON export is printed as the document itself.
    """
    filters = {"state": state, "kind": kind, "verdict": verdict, "tag": tag, "pinned": pinned, "q": q, "sort": sort}
    given = {field: value for field, value in filters.items() if value is not None}
    tables = OF_A_LIST if run_id is None else OF_A_RUN
    if run_id is not None and given:
        option = "query" if "q" in given else next(iter(given))
        raise CommandError(Exit.USAGE, f"--{option} filters the list; it cannot be used together with run {run_id}")
    if name is not None and name not in tables:
        raise CommandError(Exit.USAGE, f"--table {name!r} is not one of {', '.join(tables)}")
    chosen = form or _by_name(output)
    path = "/runs/export" if run_id is None else f"/runs/{run_id}/export"
    client = open_client()
    about: dict[str, Any] = {"run_id": run_id, "format": chosen.value}
    if chosen is not Form.JSON or run_id is None:  # for one run, JSON contains all tables
        about["table"] = name or tables[0]
    asked = {**given, "format": chosen.value, "table": about.get("table")}

    def fetch(write: Write) -> None:
        client.download(path, write, **asked)

    if as_json and output is None and chosen is Form.JSON:  # printed as the document
        to_output(fetch, document=True)
        say("")
    else:
        hand_over(fetch, output, about, as_json=as_json, text=chosen is not Form.PARQUET)


def _by_name(output: Path | None) -> Form:
    end = "" if output is None else output.suffix.lower().removeprefix(".")
    return Form(end) if end in set(Form) else Form.JSON
