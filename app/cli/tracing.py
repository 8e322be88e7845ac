"""`ddp-audit trace`: run a training script that nobody changed, and judge what its ranks did."""

import contextlib
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.client import Client, local_settings, open_client
from app.cli.exits import CommandError, Exit, of_database, of_run
from app.cli.output import AsJson, emit, note, say
from app.cli.running import read_params, say_outcome, see_through
from app.runs.errors import ServiceError
from app.settings import LOOPBACK_NAMES, ClientSettings

if TYPE_CHECKING:
    from trainer.contract.kinds import KindSpec

EXAMPLE: Final = "ddp-audit trace -- torchrun --nproc-per-node 2 train.py"
NOT_FOUND: Final = "there is no program {name!r} to start; write the command as you would without ddp-audit"
EVERY_SECONDS: Final = 0.2
"""Between two looks at whether the run has ended."""

Windows = Annotated[int | None, typer.Option(help="Optimizer steps to look into, per optimizer.")]
Unit = Annotated[str | None, typer.Option(help="What every loss should weigh alike: token, sequence or sample.")]
FailOn = Annotated[str | None, typer.Option(help="Least severity that fails the verdict: wrong, waste or note.")]
Allow = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Accept a finding; it stays visible.")]
Expect = Annotated[list[str] | None, typer.Option(metavar="K=V", help="A check of your own, such as syncs_per_step=1.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("trace")(trace)


def trace(
    command: Annotated[list[str] | None, typer.Argument(help=f"Such as in: {EXAMPLE}", metavar="-- COMMAND…")] = None,
    *,
    name: Annotated[str, typer.Option(help="What to call the run.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="A tag to find it by; may be given several times.")] = None,
    windows: Windows = None,
    unit: Unit = None,
    fail_on: FailOn = None,
    allow: Allow = None,
    expect: Expect = None,
    prepare: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Only write a folder to trace with on another machine.")
    ] = None,
    bring_in: Annotated[
        Path | None,
        typer.Option("--import", metavar="DIR", help="Judge what such a folder holds afterwards."),
    ] = None,
    as_json: AsJson = False,
) -> Exit:
    """Run a training command as it is, watch every rank, and judge weights, synchronisations and data."""
    from trainer.contract.kinds import tracing_kind

    spec = tracing_kind()
    if spec is None:
        raise CommandError(Exit.FAILED, "this installation has no kind that traces")
    options = {"windows": windows, "unit": unit, "fail_on": fail_on, "allow": allow, "expect": expect}
    params: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if expect:
        params["expect"] = read_params(expect, "--expect")
    body = {"params": params, "name": name, "tags": tag or []}
    _check_combination(command, prepare, bring_in)
    if prepare is not None:
        return _prepare(spec, prepare, params, as_json=as_json)
    if bring_in is not None:
        return _conclude(*_import(bring_in, body), as_json=as_json)
    body["params"] = {**params, "command": list(command or [])}
    client = open_client(local_settings().data_dir)
    run = Own(client, output_to_stderr=as_json).carry_out({**body, "kind": spec.name})
    code = _conclude(client, run, as_json=as_json)
    _send_on(client, run, body)
    return code


def _check_combination(command: list[str] | None, prepare: Path | None, bring_in: Path | None) -> None:
    given = [name for name, value in (("--prepare", prepare), ("--import", bring_in)) if value is not None]
    if len(given) > 1 or (given and command):
        others = " and ".join([*given, *(["a command"] if command else [])])
        raise CommandError(Exit.USAGE, f"{others} were given; each does something of its own, use one")
    if not given and not command:
        raise CommandError(Exit.USAGE, f"give the command to trace after --, as in: {EXAMPLE}")
    if command and shutil.which(command[0]) is None:
        raise CommandError(Exit.USAGE, NOT_FOUND.format(name=command[0]))


def _conclude(client: Client, run: dict[str, Any], *, as_json: bool) -> Exit:
    """Print how a run ended and return its exit code."""
    result = client.get(f"/runs/{run['id']}/result") if run["state"] == "succeeded" else None
    if as_json:
        emit({**run, "result": result})
    else:
        say_outcome(run, result)
        _say_findings(result)
    return of_run(run)


def _import(folder: Path, body: dict[str, Any]) -> tuple[Client, dict[str, Any]]:
    """Bring a folder into the service or the data directory; return the run once it has been judged."""
    client = open_client()
    run_id = _send(client, folder, body) if client.remote else _take(client, folder, body)
    note(f"ddp-audit: run {run_id} holds what {folder} brought")
    return client, see_through(client, run_id)


def _take(client: Client, folder: Path, body: dict[str, Any]) -> int:
    from app.runs.service import Service
    from app.tracing.intake import import_folder

    try:
        return import_folder(
            Service(engine=client.engine, settings=client.settings), folder.absolute(), body, actor="command"
        )
    except ServiceError as error:
        raise CommandError(Exit.USAGE, error.detail) from None
    except OSError as error:
        raise CommandError(Exit.USAGE, f"{folder} cannot be read: {error}") from None


def _send(client: Client, folder: Path, body: dict[str, Any]) -> int:
    """Send a folder to the service and return the number of its run there."""
    from app.tracing.folders import NotATrace, pack

    with tempfile.TemporaryDirectory() as aside:
        archive = Path(aside) / "records.zip"
        try:
            pack(folder.absolute(), archive, body["params"])
        except (NotATrace, OSError) as error:
            raise CommandError(Exit.USAGE, str(error)) from None
        sent: dict[str, Any] = client.send_file("/traces", archive, name=body["name"], tag=body["tags"])
    return int(sent["id"])


def _send_on(client: Client, run: dict[str, Any], body: dict[str, Any]) -> None:
    """Send a finished run to the service on another machine that the settings name, if they do."""
    named = ClientSettings()
    if not named.remote or named.host in LOOPBACK_NAMES or not run["stages"]:
        return
    records = client.settings.runs_dir / str(run["id"]) / run["stages"][0]["name"] / "attempt_1"
    there = _send(open_client(), records, body)
    note(f"ddp-audit: sent to {named.base_url}, where it is run {there}")


def _say_findings(result: dict[str, Any] | None) -> None:
    for finding in (result or {}).get("summary", {}).get("findings", []):
        say(f"\n{finding['severity']}: {finding['name']}: {finding['detail']}")
        for place in finding["places"]:
            say(f"  {place['file']}:{place['line']}")
        if finding["suggestion"]:
            say(f"  fix: {finding['suggestion']}")


class Own:
    """A run that is carried out here, in this terminal, from its record to its end."""

    def __init__(self, client: Client, *, output_to_stderr: bool) -> None:
        self._client, self._output_to_stderr = client, output_to_stderr
        self._run_id: int | None = None
        self._failure: BaseException | None = None
        self._interrupted, self._ended = threading.Event(), threading.Event()

    def carry_out(self, body: dict[str, Any]) -> dict[str, Any]:
        """Record and execute the run, and return its document once it has ended.

        Ctrl-C reaches the program by the terminal; here it asks for the end of the run. Raises CommandError,
        KeyboardInterrupt once the run has ended after a Ctrl-C.
        """
        worker = threading.Thread(target=self._execute, args=(body,), name="worker", daemon=True)
        interrupted = self._wait(worker)
        if self._failure is not None:
            raise self._failure
        document: dict[str, Any] = self._client.get(f"/runs/{self._run_id}")
        if interrupted:
            note(f"run {self._run_id} is {document['state']}")
            raise KeyboardInterrupt
        return document

    def _wait(self, worker: threading.Thread) -> bool:
        """Start the worker, wait for its end, and return whether Ctrl-C was pressed before it.

        A second Ctrl-C leaves at once.
        """
        cancelled = False
        while not self._ended.is_set():
            try:
                if worker.ident is None:
                    worker.start()
                self._ended.wait(EVERY_SECONDS)  # a join that is interrupted believes that the thread has ended
            except KeyboardInterrupt:
                if self._interrupted.is_set():
                    raise
                self._interrupted.set()
            # Before the run is recorded there is nothing to cancel: the next turn sees to it.
            if self._interrupted.is_set() and not cancelled and self._run_id is not None:
                cancelled = True
                self._cancel(self._run_id)
        return self._interrupted.is_set()

    def _cancel(self, run_id: int) -> None:
        note(f"cancelling run {run_id}; Ctrl-C again leaves at once")
        with contextlib.suppress(CommandError):  # it has ended in the meantime
            self._client.post(f"/runs/{run_id}/cancel")

    def _execute(self, body: dict[str, Any]) -> None:
        from app.runs.requests import read_request
        from app.runs.service import Service
        from worker.claim import LEASE_SECONDS, Me
        from worker.executors.local.foreground import ForegroundExecutor
        from worker.loop import Worker

        client = self._client
        service = Service(engine=client.engine, settings=client.settings)

        def record(me: Me) -> int:
            return service.submit_own(read_request(body), actor="command", worker_id=me.id, lease_seconds=LEASE_SECONDS)

        try:
            executor = ForegroundExecutor(client.settings, output_to_stderr=self._output_to_stderr)
            Worker(client.settings, executor=executor, for_others=False).run_own(record, self._recorded)
        except ServiceError as error:
            self._failure = CommandError(Exit.USAGE, error.detail)
        except BaseException as error:
            self._failure = CommandError(
                Exit.FAILED, f"the run could not be carried out: {of_database(error) or error}"
            )
        finally:
            self._ended.set()

    def _recorded(self, run_id: int) -> None:
        self._run_id = run_id
        note(f"ddp-audit: run {run_id} traces this command")


def _prepare(spec: "KindSpec", folder: Path, params: dict[str, Any], *, as_json: bool) -> Exit:
    from app.tracing.prepare import Unwritable, prepare
    from trainer.contract.params import ParamsRefused

    try:
        exports = prepare(spec, folder, params)
    except (Unwritable, ParamsRefused) as error:
        raise CommandError(Exit.USAGE, str(error)) from None
    if as_json:
        emit({"folder": str(folder), "exports": exports})
        return Exit.OK
    note(f"{folder} is ready. Put these lines before the launch line; bring it back with ddp-audit trace --import")
    for key, value in exports.items():
        say(f"export {key}={value}")
    return Exit.OK
