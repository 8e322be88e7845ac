"""Repeating the verdict of a run from its stored files, with the kind's own verifier if it has one."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from app.environment import for_children
from app.places import module_argv, module_environment
from app.runs.errors import NotFound
from app.runs.results.artifacts import artifact_path
from app.runs.results.checkpoints import check_checkpoints
from app.runs.results.reading import read_file
from trainer.contract.config import RunConfig
from trainer.contract.kinds import kinds
from trainer.contract.paths import RunPaths
from trainer.contract.result import ImagesPanel, Result, Verdict

VERIFIER_SECONDS: Final = 100.0
JUDGED: Final = {"passed", "measured", "limit", "relation", "strict"}
"""Fields of a row about a check, besides its name."""


def run_folder(runs_dir: Path, run_id: int) -> Path:
    """Return the folder of a run. Raises NotFound when there is none."""
    folder = runs_dir / str(run_id)
    if not folder.is_dir():
        raise NotFound("no_files", f"run {run_id} has no files: it has not been started, or they were removed")
    return folder


def verify_run(run_root: Path) -> dict[str, Any]:
    """Return the report of the kind's own verifier, which runs as a separate process, else that of `verify_files`."""
    module = own_verifier(run_root)
    if module is None:
        return verify_files(run_root)
    argv = module_argv(module, "--run-dir", str(run_root))
    try:
        done = subprocess.run(
            argv,
            env=module_environment(for_children(os.environ)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=VERIFIER_SECONDS,
            check=False,
        )
        report: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        why = "did not finish in time" if isinstance(error, subprocess.TimeoutExpired) else "gave no answer"
        return {"ok": False, "rows": [], "problems": [f"{module} {why}"], "pass_line": None}
    return report


def own_verifier(run_root: Path) -> str | None:
    """Return the module that repeats the audit of the run's kind; None if there is none, or if the kind is unknown."""
    try:
        kind = kinds().get(RunConfig.load(RunPaths(run_root).config).kind)
    except (OSError, ValueError):
        return None
    return (kind.verifier or None) if kind is not None else None


def verify_files(run_root: Path) -> dict[str, Any]:
    """Return `{ok, verdict, rows, problems, pass_line}`; `rows` are the checks with their outcomes.

    The result must be well formed and match the run's parameters, its verdict must follow from its checks, every
    artifact it shows must exist, and every checkpoint must match the digests of its manifest.
    """
    report: dict[str, Any] = {"ok": False, "verdict": None, "rows": [], "problems": [], "pass_line": None}
    paths = RunPaths(run_root)
    reading = read_file(paths.result)
    result = reading.result
    if result is None:
        why = "missing: the run ended without it" if reading.missing else f"not valid: {reading.problem}"
        report["problems"].append(f"result.json is {why}")
        return report
    report["verdict"] = str(result.verdict)
    report["rows"] = [{"check": check.name, **check.model_dump(mode="json", include=JUDGED)} for check in result.checks]
    report["problems"] += [*_config_problems(paths, result), *_file_problems(run_root, result)]
    failed = [check.name for check in result.checks if check.passed is not True]
    report["problems"] += [f"check {name} did not pass" for name in failed]
    report["ok"] = not report["problems"] and result.verdict is Verdict.PASS
    if report["ok"]:
        report["pass_line"] = f"PASS {result.kind}: all {len(result.checks)} checks hold in the stored files"
    return report


def _config_problems(paths: RunPaths, result: Result) -> Iterator[str]:
    try:
        config = RunConfig.load(paths.config)
    except (OSError, ValueError) as error:
        yield f"config.json cannot be read: {error}"
        return
    if config.kind != result.kind:
        yield f"config.json says kind {config.kind}, result.json {result.kind}"
    asked = json.loads(json.dumps(config.params))
    different = sorted(name for name in asked if name in result.params and result.params[name] != asked[name])
    if different:
        yield f"parameters differ between config.json and result.json: {', '.join(different)}"


def _file_problems(run_root: Path, result: Result) -> Iterator[str]:
    for panel in result.panels:
        for item in panel.items if isinstance(panel, ImagesPanel) else []:
            try:
                empty = not artifact_path(run_root.parent, int(run_root.name), item.path).stat().st_size
            except NotFound:
                yield f"artifacts/{item.path} is missing"
                continue
            if empty:
                yield f"artifacts/{item.path} is empty"
    for checkpoint in check_checkpoints(run_root).items:
        if checkpoint.step is not None and not checkpoint.valid:
            yield f"{checkpoint.path}: {checkpoint.problem}"
