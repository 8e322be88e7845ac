"""Commands that show what a run produced (result, metrics, resources, events, artifacts), and the audit log."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from app.cli.client import Client, open_client
from app.cli.exits import CommandError, Exit
from app.cli.files import Output, hand_over
from app.cli.following import follow as follow_run
from app.cli.output import AsJson, RunId, emit, say, table
from app.cli.running import say_checks
from app.runs.telemetry.cursor import Cursor
from app.runs.telemetry.items import EventFilter, Wanted
from app.streams import listening

Document = dict[str, Any]
Rank = Annotated[int | None, typer.Option(min=0, help="Only this rank.")]
MIB: Final = 2**20
PLACE: Final = ("id", "stage", "attempt", "rank", "type")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (result, metrics, resources, events, artifacts, audit):
        app.command(command.__name__)(command)


def result(run_id: RunId, as_json: AsJson = False) -> int:
    """Show the result of a run: checks, verdict, summary and limits; the exit code reflects the verdict."""
    document = open_client().get(f"/runs/{run_id}/result")
    if as_json:
        emit(document)
    else:
        say_checks(document)
        table(["summary", ""], [[name, _plain(value)] for name, value in document["summary"].items()])
        for limit in document["limits"]:
            say(f"not shown: {limit}")
        say(f"run {run_id}: verdict {document['verdict']}")
    return Exit.OK if document["verdict"] == "pass" else Exit.NOT_PASSED


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def metrics(
    run_id: RunId,
    *,
    key: Annotated[list[str] | None, typer.Option(help="Only this metric; may be given several times.")] = None,
    rank: Rank = None,
    first: Annotated[float | None, typer.Option("--from", help="First step.")] = None,
    last: Annotated[float | None, typer.Option("--to", help="Last step.")] = None,
    max_points: Annotated[int, typer.Option(help="Maximum number of points per series, 2 to 100000.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """Show the metric series of a run; with --json their points, down-sampled but keeping extremes."""
    given = {"key": key, "rank": rank, "from": first, "to": last, "max_points": max_points}
    document = open_client().get(f"/runs/{run_id}/metrics", **given)
    if as_json:
        emit(document)
        return
    columns = ["metric", "rank", "stage", "attempt", "points", "first", "last", "smallest", "largest"]
    table(columns, [_series_row(series) for series in document["series"]])
    say(f"all points: ddp-audit export {run_id} --table metrics -o FILE.csv")


def _series_row(series: Document) -> list[Any]:
    values = series["values"]
    numbers = [value for value in values if isinstance(value, int | float)]
    ends = [values[0], values[-1], min(numbers, default=None), max(numbers, default=None)] if values else [None] * 4
    return [*(series[name] for name in ("key", "rank", "stage", "attempt", "points")), *ends]


def resources(run_id: RunId, as_json: AsJson = False) -> None:
    """Show what CPU, memory and GPU every rank used; with --json over time."""
    document = open_client().get(f"/runs/{run_id}/resources")
    if as_json:
        emit(document)
        return
    columns = ["stage", "attempt", "rank", "samples", "seconds", "CPU %", "MiB", "GPU MiB", "GPU %"]
    table(columns, [_used(series) for series in document["series"]], "mean CPU and GPU, largest memory")


def _used(series: Document) -> list[Any]:
    cpu, gpu, seconds = series["cpu_percent"], series["gpu_percent"], series["seconds"]
    return [
        *(series[name] for name in ("stage", "attempt", "rank")),
        len(seconds),
        round(seconds[-1] - seconds[0], 1),
        _mean(cpu),
        _largest(series["rss_bytes"]),
        _largest(series["gpu_bytes"]),
        _mean(gpu),
    ]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None


def _largest(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(max(known) / MIB) if known else None


def events(
    run_id: RunId,
    *,
    after: Annotated[int, typer.Option(min=0, help="Only events with a higher id.")] = 0,
    stage: Annotated[str | None, typer.Option(help="Only this stage.")] = None,
    rank: Rank = None,
    type_: Annotated[str | None, typer.Option("--type", help="start, phase, metrics, message, error …")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of events, 1 to 1000.")] = 100,
    malformed: Annotated[bool, typer.Option("--malformed", help="Malformed lines, which are not events.")] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow: print every event until the run ends.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the events of a run's ranks, in order; with --json one document, with --json -f one per line."""
    client = open_client()
    given = {"stage": stage, "rank": rank, "type": type_}
    if malformed:
        if follow or after or any(value is not None for value in given.values()):
            raise CommandError(Exit.USAGE, "--malformed accepts only --limit: malformed lines have no id and no type")
        _say_malformed(client.get(f"/runs/{run_id}/malformed", limit=limit), as_json=as_json)
    elif follow:
        for item in _follow(client, run_id, after, given):
            emit(item) if as_json else say(_event_line(item), at_once=True)
            if not listening():
                return
    else:
        document = client.get(f"/runs/{run_id}/events", after=after, limit=limit, **given)
        if as_json:
            emit(document)
            return
        for item in document["items"]:
            say(_event_line(item))
        if len(document["items"]) == limit:
            say(f"more: --after {document['next_after']}")


def _follow(client: Client, run_id: int, after: int, given: Document) -> Iterator[Document]:
    client.get(f"/runs/{run_id}/events", after=after, limit=1, **given)  # refuses unknown filters
    wanted = Wanted(moves=False, events=EventFilter(**given), output=None)
    for items in follow_run(client, run_id, wanted, Cursor(event=after)):
        yield from (item.data for item in items if item.type == "event")


def _event_line(item: Document) -> str:
    rest = {name: value for name, value in item.items() if name not in {*PLACE, "seq", "t"}}
    place = f"[{item['id']} {item['stage']} {item['attempt']} rank {item['rank']}]"
    return f"{place} {item['type']} {json.dumps(rest, ensure_ascii=False) if rest else ''}".rstrip()


def _say_malformed(document: Document, *, as_json: bool) -> None:
    if as_json:
        emit(document)
        return
    columns = ("stage", "attempt", "rank", "offset", "why", "text")
    table(columns, [[item[column] for column in columns] for item in document["items"]])


def artifacts(
    run_id: RunId,
    path: Annotated[str | None, typer.Argument(help="One of the listed files; omit it to get the list.")] = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """List the artifacts of a run, or fetch one of them."""
    client = open_client()
    if path is not None:
        address = f"/runs/{run_id}/artifacts/{quote(path, safe='/')}"
        text = path.lower().endswith((".json", ".txt", ".csv", ".md", ".log", ".html", ".svg"))
        about = {"run_id": run_id, "path": path}
        hand_over(lambda write: client.download(address, write), output, about, as_json=as_json, text=text)
        return
    if output is not None:
        raise CommandError(
            Exit.USAGE, f"-o FILE requires the path of an artifact: ddp-audit artifacts {run_id} PATH -o FILE"
        )
    document = client.get(f"/runs/{run_id}/artifacts")
    if as_json:
        emit(document)
        return
    columns = ("path", "bytes", "media_type")
    table(columns, [[item[column] for column in columns] for item in document["items"]])


def audit(
    *,
    run: Annotated[int | None, typer.Option(help="Only entries about this run.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only entries by this actor.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this action, such as submit, cancel, delete, edit.")] = None,
    before: Annotated[int | None, typer.Option(help="next_before of the previous page.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of entries, 1 to 1000.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show who launched, changed, cancelled or deleted what, newest first; on a service, operator only."""
    given = {"run": run, "actor": actor, "action": action, "before": before, "limit": limit}
    document = open_client().get("/audit", **given)
    if as_json:
        emit(document)
        return
    columns = ("id", "at", "actor", "action", "run_id", "detail")
    table(columns, [[item[column] for column in columns] for item in document["items"]])
    if document["next_before"] is not None:
        say(f"more: --before {document['next_before']}")
