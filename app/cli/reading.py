"""Commands that show runs and kinds, and repeat runs."""

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from app.cli.client import open_client
from app.cli.diagnosis import say_diagnosis
from app.cli.exits import CommandError
from app.cli.output import AsJson, RunId, cell, emit, passed_word, say, table
from app.formats import exact, telling_apart, words
from app.runs.states import State

SEVERAL = "; may be given several times."
States = Annotated[list[str] | None, typer.Option(help=", ".join(State) + SEVERAL)]
Kinds = Annotated[list[str] | None, typer.Option(help="A kind of `ddp-audit kinds`" + SEVERAL)]
Verdicts = Annotated[list[str] | None, typer.Option(help="pass, fail, inconclusive" + SEVERAL)]
Write = Callable[[Any], str]
Tags = Annotated[list[str] | None, typer.Option(help="A tag the run must have" + SEVERAL)]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="An extra column: check (the main check), check:NAME or param:NAME" + SEVERAL),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("kinds")(kinds)
    app.command("list")(list_runs)
    app.command("show")(show)
    app.command("retry")(retry)
    app.command("compare")(compare)


def kinds(as_json: AsJson = False) -> None:
    """List what can be run, with presets and parameters."""
    document = open_client().get("/kinds")
    if as_json:
        emit(document)
        return
    for kind in document["items"]:
        say(f"{kind['name']}: {kind['title']}")
        say(f"  {kind['question']}")
        for name in kind["presets"]:
            say(f"  --preset {name}: {kind['preset_titles'].get(name, '')}")
        parameters = kind["schema"]["properties"]
        table(
            ["parameter", "default", "meaning"],
            [[name, _default(field), field.get("description", "")] for name, field in parameters.items()],
        )


def _default(field: dict[str, Any]) -> str | None:
    """Return the default of a parameter from its schema, None if there is none."""
    return exact(field["default"]) if field.get("default") is not None else None


def list_runs(
    *,
    state: States = None,
    kind: Kinds = None,
    verdict: Verdicts = None,
    tag: Tags = None,
    pinned: Annotated[
        bool | None, typer.Option("--pinned/--not-pinned", help="Only pinned runs, or only runs that are not pinned.")
    ] = None,
    q: Annotated[
        str | None, typer.Option("-q", "--query", help="Part of a name, note or tag, or a run number.")
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            help="newest, oldest, pinned (pinned first), finished (last finished first), longest or shortest."
        ),
    ] = "newest",
    limit: Annotated[int, typer.Option(help="Runs per page, 1 to 200.")] = 50,
    cursor: Annotated[
        str | None, typer.Option(help="next_cursor of the previous page, with the same filters and sort.")
    ] = None,
    column: Columns = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first by default."""
    given = {"state": state, "kind": kind, "verdict": verdict, "tag": tag, "pinned": pinned, "q": q, "sort": sort}
    document = open_client().get("/runs", **given, limit=limit, cursor=cursor, col=column)
    if as_json:
        emit(document)
        return
    more = list(dict.fromkeys(column or ()))
    rows = [[*_row(run), *(_column(run["columns"], name) for name in more)] for run in document["items"]]
    table(["id", "name", "kind", "state", "verdict", "created", "took"], rows, named=more)
    if document["next_cursor"]:
        say(f"more: --cursor {document['next_cursor']}")


def _row(run: dict[str, Any]) -> list[Any]:
    kind = f"{run['kind']} {run['preset'] or ''}".rstrip()
    state = f"{run['state']}: {words(run['reason'])}" if run["reason"] not in (None, "completed") else run["state"]
    took = None if run["took_seconds"] is None else f"{run['took_seconds']:.1f} s"
    name = f"* {run['name']}".rstrip() if run["pinned"] else run["name"]
    return [run["id"], name, kind, state, run["verdict"], run["created_at"], took]


def _column(values: dict[str, Any], name: str) -> str | None:
    """Return the cell of a requested column; None if the run has no value there."""
    if name not in values:
        return None
    if name.startswith("param:"):
        return exact(values[name])
    told = compared_check(values[name])
    return f"{values[name]['title']}: {told}" if name == "check" else told


def show(run_id: RunId, as_json: AsJson = False) -> None:
    """Show all details of a run."""
    client = open_client()
    document = client.get(f"/runs/{run_id}")
    if as_json:
        emit(document)
        return
    say_run(document)
    if document["verdict"]:
        with suppress(CommandError):  # a result that cannot be read is reported by `ddp-audit result`
            say_diagnosis(client.get(f"/runs/{run_id}/result"))


def say_run(run: dict[str, Any]) -> None:
    """Print a run's document for a person."""
    reason = f": {words(run['reason'])}" if run["reason"] not in (None, "completed") else ""
    verdict = f", verdict {run['verdict']}" if run["verdict"] else ""
    name = " · ".join(filter(None, [f"run {run['id']}", run["name"]]))
    say(f"{name} · {run['kind']} {run['preset'] or ''} · {run['state']}{reason}{verdict}")
    marks = [*(["pinned"] if run["pinned"] else []), *(f"tag {tag}" for tag in run["tags"])]
    if marks:
        say(", ".join(marks))
    if run["notes"]:
        say(run["notes"])
    if run["queue"]:
        say(f"waits at position {run['queue']['position']}: {run['queue']['why']}")
    if run["diagnosis"]:
        say(run["diagnosis"])
    rows = [
        [stage["name"], stage["attempt"] or None, stage["state"], progress_text(stage["progress"]), stage["exit_code"]]
        for stage in run["stages"]
    ]
    if rows:
        table(["stage", "attempt", "state", "progress", "exit code"], rows)
    columns = ("rank", "pid", "device", "phase", "step", "last_seen", "exit_code", "signal")
    if run["ranks"]:
        table(columns, [[rank[column] for column in columns] for rank in run["ranks"]])
    table(["at", "from", "to", "reason", "note"], [_move(move) for move in run["history"]])
    say("parameters: " + ", ".join(f"{name}={exact(value)}" for name, value in run["params"].items()))
    say(f"reproduce: {run['reproduce']}")
    if run["verdict"]:
        say(f"checks: ddp-audit result {run['id']}")


def _move(move: dict[str, Any]) -> list[Any]:
    return [move["at"], move["from"], move["to"], move["reason"], move["note"]]


def progress_text(progress: dict[str, Any]) -> str:
    """Return a stage's progress as readable text."""
    total = "" if progress["total"] is None else f"/{progress['total']:.15g}"
    return f"{progress['done']:.15g}{total} {progress['unit']}".strip()


def retry(
    run_id: RunId,
    resume: Annotated[bool, typer.Option("--resume", help="Start from the newest valid checkpoint.")] = False,
    as_json: AsJson = False,
) -> None:
    """Record a new run with the parameters of an ended one."""
    document = open_client().post(f"/runs/{run_id}/retry", {"resume": resume})
    if as_json:
        emit(document)
    else:
        say(f"run {document['id']} recorded as a {document['history'][0]['note']}; a live worker executes it")


def compare(
    ids: Annotated[list[int], typer.Argument(help="Two to ten runs.", metavar="ID ID")], as_json: AsJson = False
) -> None:
    """Compare runs side by side: differences in parameters, checks and summary."""
    document = open_client().get("/compare", ids=",".join(str(number) for number in ids))
    if as_json:
        emit(document)
        return
    heads = [f"run {number}" for number in document["ids"]]
    rows = [[name, *(run[name] for run in document["runs"])] for name in ("kind", "preset", "state", "verdict")]
    table(["", *heads], rows)
    different = [row for row in document["params"] if row["differs"]]
    table(["parameters that differ", *heads], [[row["name"], *map(_given, row["values"])] for row in different])
    table(["summary", *heads], [_summary_row(row) for row in document["summary"]])
    table(["check", *heads], [_check_row(row) for row in document["checks"]])


def _given(value: Any) -> str | None:
    """Return a parameter with every digit; None if a run does not have it."""
    return None if value is None else exact(value)


def _summary_row(row: dict[str, Any]) -> list[Any]:
    return [row["name"], *map(telling_apart(row["values"], cell), row["values"])]


def _check_row(row: dict[str, Any]) -> list[str | None]:
    from app.runs.results.bounds import writer

    write = writer(row["values"], cell)
    return [row["name"], *(compared_check(check, write) for check in row["values"])]


def compared_check(check: dict[str, Any] | None, write: Write = cell) -> str | None:
    """Return a check of one run as a cell: outcome, measured value and requirement; None if the run lacks it."""
    from app.runs.results.bounds import bound, measured

    if check is None:
        return None
    told = f"{passed_word(check['passed'])} {measured(check, write)} {check['unit']}".strip()
    return told if check["limit"] is None else f"{told} ({bound(check, write)})"
