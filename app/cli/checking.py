"""Commands that check this machine, the checkpoints of runs and a run's stored artifacts, or draw its figures."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.cli.client import Client, local_settings, open_client
from app.cli.exits import CommandError, Exit
from app.cli.output import AsJson, RunId, cell, emit, note, say, table
from app.environment import for_children
from app.places import module_argv, module_environment

GIB: Final = 2**30


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("check-environment")(check_environment)
    app.command("check-checkpoints")(check_checkpoints)
    app.command("verify")(verify)
    app.command("figures")(figures)


def run_module(module: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `python -m module`, whose standard output is one JSON document; return its exit code and the document.

    Raises CommandError when there is no such document.
    """
    argv, environment = module_argv(module, *arguments), module_environment(for_children(os.environ))
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise CommandError(Exit.FAILED, f"{module} ended with {done.returncode} and gave no answer") from None
    return done.returncode, document


def check_environment(
    ranks: Annotated[int | None, typer.Option(min=1, max=64, help="Also start this many ranks.")] = None,
    as_json: AsJson = False,
) -> int:
    """Report what this machine offers and fail on any shortfall; with --ranks also start that many ranks."""
    given = [] if ranks is None else ["--ranks", str(ranks)]
    code, report = run_module("trainer.probe", *given, "--data-dir", str(local_settings().data_dir))
    if as_json:
        emit(report)
    else:
        _say_environment(report)
    return Exit.NOT_PASSED if code or report["shortfalls"] else Exit.OK


def _say_environment(report: dict[str, Any]) -> None:
    facts = {
        "host": report["host"],
        "system": report["operating_system"],
        "Python": report["python"],
        "torch": report["torch"],
        "torchvision": report["torchvision"],
        "CUDA runtime": report["cuda_runtime"],
        "driver": report["driver"],
        "processor": f"{report['cpu']}, {report['cpu_count']} cores",
        "memory": f"{report['memory_bytes'] / GIB:.1f} GiB",
        "free disk": f"{report['disk_free_bytes'] / GIB:.1f} GiB",
        "BF16 on the processor": report["bf16_cpu"],
        "NCCL in this torch": report["nccl"],
        "GPUs": len(report["gpus"]),
    }
    table(["", ""], facts.items())
    gpus = [[gpu["index"], gpu["name"], f"{gpu['total_bytes'] / GIB:.1f}", gpu["bf16"]] for gpu in report["gpus"]]
    if gpus:
        table(["GPU", "name", "GiB", "BF16"], gpus)
    if report["ranks"]:
        columns = list(report["ranks"][0])
        table(columns, [list(rank.values()) for rank in report["ranks"]], f"{report['backend']}, {report['device']}")
    for shortfall in report["shortfalls"]:
        say(f"shortfall: {shortfall}")
    if not report["shortfalls"]:
        say("no shortfall" + ("" if report["backend"] == "nccl" else "; NCCL was not validated"))


def check_checkpoints(
    run_id: Annotated[int | None, typer.Argument(help="One run; default: all.", metavar="[ID]")] = None,
    as_json: AsJson = False,
) -> int:
    """Read every byte of checkpoints; compare digests, steps, training ids and tensor types."""
    client = open_client()
    numbers = _runs(client) if run_id is None else [run_id]
    items = [
        {"run_id": number, **item}
        for number in numbers
        for item in _checkpoints(client, number, forgiving=run_id is None)
    ]
    checkpoints = [item for item in items if item["step"] is not None]
    bad = [item for item in checkpoints if not item["valid"]]
    if as_json:
        emit({"ok": not bad, "items": items})
    else:
        columns = ("run_id", "path", "step", "bytes", "valid", "problem")
        table(columns, [[item[column] for column in columns] for item in items])
        beside = len(items) - len(checkpoints)
        say(
            f"{len(checkpoints)} checkpoints, {len(bad)} not valid" + (f"; {beside} not a checkpoint" if beside else "")
        )
    return Exit.NOT_PASSED if bad else Exit.OK


def _runs(client: Client) -> Iterator[int]:
    cursor = None
    while True:
        page = client.get("/runs", limit=200, cursor=cursor)
        yield from (run["id"] for run in page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            return


def _checkpoints(client: Client, run_id: int, *, forgiving: bool) -> list[dict[str, Any]]:
    try:
        items: list[dict[str, Any]] = client.get(f"/runs/{run_id}/checkpoints")["items"]
    except CommandError as error:
        if forgiving and error.code is Exit.NOT_FOUND:  # a run that was never started has no files
            return []
        raise
    return items


def verify(run_id: RunId, as_json: AsJson = False) -> int:
    """Repeat the audit of a run from its stored files alone."""
    report = open_client().get(f"/runs/{run_id}/verification")
    if as_json:
        emit(report)
    else:
        say_verification(report)
    return Exit.OK if report["ok"] else Exit.NOT_PASSED


def say_verification(report: dict[str, Any]) -> None:
    """Print a repeated audit: its rows, every problem found, and the pass line only when there is none."""
    rows = [_with_bound(row) if "relation" in row else row for row in report["rows"]]
    if rows:
        table(list(rows[0]), [list(row.values()) for row in rows])
    if report.get("baseline"):
        say(f"baseline: always {report['baseline']['class']}, accuracy {report['baseline']['accuracy']:.4f}")
    if report.get("top_confusions"):
        columns = list(report["top_confusions"][0])
        table(columns, [list(row.values()) for row in report["top_confusions"]], "most frequent confusions")
    for problem in report["problems"]:
        say(f"problem: {problem}")
    if report["ok"] and report["pass_line"]:
        say(report["pass_line"])


def _with_bound(row: dict[str, Any]) -> dict[str, Any]:
    from app.runs.results.bounds import bound, measured

    told = {name: row[name] for name in ("check", "passed")}
    return {**told, "measured": measured(row, cell), "required": bound(row, cell)}


def figures(run_id: RunId, as_json: AsJson = False) -> None:
    """Draw the panels of a run's result as SVG and PNG files: in its artifacts folder, or here for a service's run."""
    from pydantic import TypeAdapter

    from app.figures.write import draw_panels
    from trainer.contract.result import Panel

    client = open_client()
    document = client.get(f"/runs/{run_id}/result")
    folder, within = _figures_folder(client, run_id)
    try:
        paths = draw_panels(TypeAdapter(list[Panel]).validate_python(document["panels"]), folder, within=within)
    except ValueError as error:
        raise CommandError(Exit.FAILED, f"the result of run {run_id} is not valid: {error}") from None
    except OSError as error:
        if not within.is_dir():
            client.get(f"/runs/{run_id}")  # says that it has been deleted in the meantime
        raise CommandError(Exit.FAILED, f"{folder} cannot be written: {error.strerror}") from None
    if as_json:
        emit({"run_id": run_id, "items": [str(path) for path in paths]})
        return
    for path in paths:
        say(str(path))
    note(f"{len(paths)} files")


def _figures_folder(client: Client, run_id: int) -> tuple[Path, Path]:
    """Return the folder for the figures of a run, and the folder that must already exist."""
    from trainer.contract.paths import RunPaths

    if client.remote:
        here = Path.cwd()
        return here / f"run-{run_id}-figures", here
    paths = RunPaths(client.settings.runs_dir / str(run_id))
    return paths.artifacts / "figures", paths.root
