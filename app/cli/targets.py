"""`ddp-audit targets`: the registered targets, and a check of one of them without a run."""

from typing import Annotated

import typer

from app.cli.client import open_client
from app.cli.exits import Exit
from app.cli.output import AsJson, emit, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("targets")(targets)


def targets(
    name: Annotated[str | None, typer.Argument(help="Call every member of this target once.", metavar="NAME")] = None,
    ranks: Annotated[int, typer.Option(help="Ranks whose windows are looked at.", min=2, max=64)] = 2,
    as_json: AsJson = False,
) -> int:
    """List registered training code, or check one target without a run; exit code 1 if something cannot be used."""
    client = open_client()
    if name is None:
        document = client.get("/targets")
        items = document["items"]
        rows = [[item["name"], item["origin"], item["spec"], item["problem"] or item["title"]] for item in items]
        heads, ok = ["target", "from", "object", "about it"], not any(item["problem"] for item in items)
    else:
        document = client.post(f"/targets/{name}/check", {"ranks": ranks})
        rows = [[item["member"], "ok" if item["ok"] else "FAULT", item["text"]] for item in document["members"]]
        heads, ok = ["member", "", "found"], document["ok"]
    if as_json:
        emit(document)
    else:
        table(heads, rows)
    return Exit.OK if ok else Exit.NOT_PASSED
