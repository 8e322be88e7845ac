"""`ddp-audit run`: record a run, wait for its end, print its checks, exit with its verdict."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.client import Client, open_client
from app.cli.diagnosis import say_diagnosis
from app.cli.exits import CommandError, Exit, of_run
from app.cli.following import follow
from app.cli.output import AsJson, cell, emit, note, passed_word, say, table
from app.formats import read_back, words
from app.runs.states import FINAL
from app.runs.telemetry.items import Wanted

if TYPE_CHECKING:
    from worker.executors.local.warm import Starter

MOVES: Final = Wanted(events=None, output=None)
EXAMPLES: Final = {"-p": "-p updates=5", "--launch": "--launch nodes=2", "--expect": "--expect syncs_per_step=1"}
PARAM_HELP: Final = "One of the parameters `ddp-audit kinds` lists, such as seed=7; may be given several times."
Watch = Callable[[dict[str, Any]], None]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    kind: Annotated[str, typer.Argument(help="See `ddp-audit kinds`.", metavar="KIND")],
    *,
    preset: Annotated[str | None, typer.Option(help="A named set of parameters; default: quick.")] = None,
    param: Annotated[list[str] | None, typer.Option("-p", "--param", metavar="key=value", help=PARAM_HELP)] = None,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="A tag for filtering; may be given several times.")] = None,
    launch: Annotated[
        list[str] | None,
        typer.Option("--launch", metavar="key=value", help="Option for the executor, such as nodes=2."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="Repeating the same request with the same key records the run only once."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Only record the run; the next free worker executes it.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run a kind and print its table of checks; the exit code reflects the verdict."""
    body = {"kind": kind, "preset": preset, "params": read_params(param or []), "name": name, "tags": tag or []}
    if launch:
        body["launch"] = read_params(launch, "--launch")
    if detach:
        recorded = _record(open_client(), body, idempotency_key)
        if as_json:
            emit(recorded)
        else:
            say(f"run {recorded['id']} is {recorded['state']}; `ddp-audit status` shows the available workers")
        return Exit.OK
    from app.cli.inline import warming_up

    with warming_up() as starter:
        client = open_client()
        run_id = _record(client, body, idempotency_key)["id"]
        ended = see_through(client, run_id, starter)
    result = client.get(f"/runs/{run_id}/result") if ended["state"] == "succeeded" else None
    if as_json:
        emit({**ended, "result": result})
    else:
        say_outcome(ended, result)
    return of_run(ended)


def _record(client: Client, body: dict[str, Any], idempotency_key: str | None) -> dict[str, Any]:
    """Record the run and return its document."""
    headers = {"Idempotency-Key": idempotency_key} if idempotency_key else None
    recorded: dict[str, Any] = client.post("/runs", body, headers=headers)
    note(f"run {recorded['id']}: {recorded['reproduce']}")
    return recorded


def read_params(words: list[str], option: str = "-p") -> dict[str, Any]:
    """Return `key=value` words as parameters: values are parsed as JSON if possible, else kept as text.

    Raises CommandError naming `option` for a word without a name or an equals sign, or a name given twice.
    """
    params: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not key or not equals:
            raise CommandError(Exit.USAGE, f"{option} {word!r}: write key=value, such as {EXAMPLES[option]}")
        if key in params:
            raise CommandError(Exit.USAGE, f"{option} {key} is given twice")
        params[key] = read_back(text)
    return params


def see_through(client: Client, run_id: int, starter: "Starter | None" = None) -> dict[str, Any]:
    """Return the run's document once it has ended, executing it here if there is no live worker.

    Ctrl-C cancels the run and waits until every process is gone; a second one exits at once. Raises KeyboardInterrupt
    then.
    """
    from app.cli.inline import executing
    from app.cli.progress import progress

    with executing(client, run_id, starter) as check, progress() as watch:
        try:
            return _until_final(client, run_id, watch, check)
        except KeyboardInterrupt:
            note(f"cancelling run {run_id}; press Ctrl-C again to exit at once")
            _cancel(client, run_id)
            ended = _until_final(client, run_id, watch, check)
            note(f"run {run_id} is {ended['state']}")
            raise


def _cancel(client: Client, run_id: int) -> None:
    try:
        client.post(f"/runs/{run_id}/cancel")
    except CommandError as error:  # it ended in the meantime
        note(error.message)


def _until_final(client: Client, run_id: int, watch: Watch, check: Callable[[], None]) -> dict[str, Any]:
    for _ in follow(client, run_id, MOVES):  # arrives at every state change, and after a moment without one
        document: dict[str, Any] = client.get(f"/runs/{run_id}")
        watch(document)
        if document["state"] in FINAL:
            break
        check()
    return document


def say_outcome(run: dict[str, Any], result: dict[str, Any] | None) -> None:
    """Print how a run ended: its checks and verdict, or the failure."""
    if result is None:
        say(f"run {run['id']} ended {run['state']} ({words(run['reason'] or 'no reason recorded')})")
        if run["diagnosis"]:
            say(run["diagnosis"])
        return
    say_checks(result)
    environment = result["environment"]
    unproven = "" if environment["backend"] == "nccl" else "; NCCL was not validated"
    say(f"{environment['world_size']} ranks on {environment['device']} over {environment['backend']}{unproven}")
    say(f"run {run['id']}: verdict {run['verdict']}")


def say_checks(result: dict[str, Any]) -> None:
    """Print the table of checks."""
    from app.runs.results.bounds import bound, measured

    rows = [
        [check["name"], passed_word(check["passed"]), measured(check, cell), bound(check, cell), check["unit"]]
        for check in result["checks"]
    ]
    table(["check", "outcome", "measured", "required", "unit"], rows)
    for check in result["checks"]:
        if check["passed"] is not True and check["detail"]:
            say(f"{check['name']}: {check['detail']}")
    say_diagnosis(result)
