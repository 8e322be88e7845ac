"""Commands that share results: JUnit, self-contained pages, badges, trends, webhook deliveries."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from app.cli.client import open_client
from app.cli.files import Output, hand_over
from app.cli.output import AsJson, RunId, cell, emit, passed_word, say, table


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (junit, page, badge, trends, deliveries, redeliver):
        app.command(command.__name__)(command)


def junit(run_id: RunId, output: Output = None, as_json: AsJson = False) -> None:
    """Export the checks of an ended run as JUnit XML."""
    _hand_over(f"/runs/{run_id}/junit", output, {"run_id": run_id}, as_json=as_json)


def page(run_id: RunId, output: Output = None, as_json: AsJson = False) -> None:
    """Export the result of an ended run as one self-contained HTML file."""
    _hand_over(f"/runs/{run_id}/page", output, {"run_id": run_id}, as_json=as_json)


def badge(
    kind: Annotated[str, typer.Argument(help="One of `kinds`.")], output: Output = None, as_json: AsJson = False
) -> None:
    """Export the newest verdict of a kind as an SVG badge."""
    _hand_over(f"/badge/{quote(kind, safe='')}.svg", output, {"kind": kind}, as_json=as_json)


def _hand_over(path: str, output: Path | None, document: dict[str, Any], *, as_json: bool) -> None:
    client = open_client()
    hand_over(lambda write: client.download(path, write), output, document, as_json=as_json)


def trends(
    kind: Annotated[str, typer.Argument(help="One of `kinds`.")],
    check: Annotated[str | None, typer.Argument(help="Default: list the available checks.")] = None,
    preset: Annotated[str | None, typer.Option(help="Only runs of this preset.")] = None,
    limit: Annotated[int, typer.Option(help="Number of newest runs, 1 to 1000.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show one check over the runs of a kind, oldest first."""
    document = open_client().get("/trends", kind=kind, check=check, preset=preset, limit=limit)
    if as_json:
        emit(document)
        return
    if check is None:
        table(["check", "runs", "title"], [[item["check"], item["runs"], item["title"]] for item in document["checks"]])
        return
    say_trend(document)


def say_trend(document: dict[str, Any]) -> None:
    """Print a trend as a table; the last column is the distance from the limit by the check's relation."""
    from app.runs.results.bounds import DISTANCES, bound, distance, measured, relation_of

    relation = relation_of(document)
    rows = [
        [
            item["run_id"],
            item["finished_at"],
            passed_word(item["passed"]),
            measured(item, cell),
            bound(item, cell),
            distance(item, relation),
        ]
        for item in document["items"]
    ]
    say(document["title"])
    table(["run", "finished", "result", "measured", "required", DISTANCES[relation]], rows)


def deliveries(
    run_id: Annotated[int | None, typer.Option("--run", help="Only deliveries of this run.")] = None,
    status: Annotated[str | None, typer.Option(help="pending, delivered, failed or skipped.")] = None,
    before: Annotated[int | None, typer.Option(help="next_before of the previous page.")] = None,
    limit: Annotated[int, typer.Option(help="Number of newest deliveries, 1 to 200.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show webhook deliveries with their last attempt."""
    given = {"run_id": run_id, "status": status, "before": before, "limit": limit}
    document = open_client().get("/webhooks/deliveries", **given)
    if as_json:
        emit(document)
        return
    table(["delivery", "run", "state", "status", "attempts", "last answer", "next"], map(_row, document["items"]))
    if document["next_before"] is not None:
        say(f"more: --before {document['next_before']}")


def _row(item: dict[str, Any]) -> list[Any]:
    last = item["attempts"][-1] if item["attempts"] else {"status": None, "error": ""}
    answer = last["error"] or last["status"]
    return [
        item["id"],
        item["run_id"],
        item["run"]["state"],
        item["status"],
        len(item["attempts"]),
        answer,
        item["next_at"],
    ]


def redeliver(
    delivery_id: Annotated[int, typer.Argument(help="Id of the delivery.", metavar="ID")], as_json: AsJson = False
) -> None:
    """Send a delivery again; a running service does so within seconds."""
    document = open_client().post(f"/webhooks/deliveries/{delivery_id}/redeliver")
    if as_json:
        emit(document)
    else:
        say(f"delivery {delivery_id} of run {document['run_id']} is {document['status']}")
