"""Repeats the audit using only the stored artifacts; run as a module with `--run-dir D`, prints JSON.

Reads only `config.json` (what was requested) and `artifacts/` (what was stored), neither the result nor the events.
Exit code 0: everything is consistent; 1: something is not.
"""

import argparse
import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from trainer.contract.config import RunConfig
from trainer.contract.paths import RunPaths
from trainer.kinds.cifar.audit.artifacts import ModeArtifacts, top_confusions
from trainer.kinds.cifar.audit.documents import HistoryRow, Report, load_history, load_report
from trainer.kinds.cifar.params import CifarParams, Mode

Stored = TypeVar("Stored")
TOLERANCE: Final = 1e-9
"""Tolerance between a stored accuracy and the same quotient of the stored counts."""


@dataclass(kw_only=True)
class VerifyReport:
    """What the artifacts say, and everything that is inconsistent."""

    ok: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One per mode: mode, optimizer_steps, gradient_syncs (per epoch), test_accuracy."""
    baseline: dict[str, Any] | None = None
    """`class` and `accuracy`."""
    top_confusions: list[dict[str, Any]] = field(default_factory=list)
    """mode, true, predicted, count."""
    problems: list[str] = field(default_factory=list)
    pass_line: str | None = None
    """Only if everything is consistent."""


def verify(paths: RunPaths) -> VerifyReport:
    """Return the repeated audit of a finished `cifar` run.

    Raises OSError or pydantic.ValidationError if `config.json` itself cannot be read.
    """
    params = CifarParams.model_validate(RunConfig.load(paths.config).params)
    report = VerifyReport()
    for mode in params.modes:
        _verify_mode(params, mode, ModeArtifacts(paths, mode), report)
    ratio = _ratio(params, report) if len(params.modes) == 2 else None
    report.ok = not report.problems
    report.pass_line = _pass_line(params, ratio) if report.ok else None
    return report


def _verify_mode(params: CifarParams, mode: Mode, artifacts: ModeArtifacts, report: VerifyReport) -> None:
    faults = artifacts.faulty()
    report.problems.extend(faults)
    if artifacts.model.is_file() and artifacts.model.stat().st_size and not zipfile.is_zipfile(artifacts.model):
        report.problems.append(f"artifacts/{mode}/model.pt is not a PyTorch file (not a zip archive)")
    row: dict[str, Any] = {"mode": mode, "optimizer_steps": None, "gradient_syncs": None, "test_accuracy": None}
    history = _read(artifacts.history, load_history, report)
    if history:
        row["optimizer_steps"], row["gradient_syncs"] = history[-1].optimizer_steps, history[-1].gradient_syncs
    if history is not None:
        _tell(report, artifacts.history, _history_problems(params, mode, history))
    scores = _read(artifacts.report, load_report, report)
    if scores is not None:
        row["test_accuracy"] = scores.model_test_accuracy
        _tell(report, artifacts.report, _report_problems(params, mode, scores))
        _tell(report, artifacts.report, _note_baseline(scores, report))
        report.top_confusions.extend({"mode": mode, **item.model_dump()} for item in scores.top_confusions)
    report.rows.append(row)


def _read(path: Path, load: Callable[[Path], Stored], report: VerifyReport) -> Stored | None:
    if not path.is_file() or path.stat().st_size == 0:
        return None  # already reported in the list of faulty files
    try:
        return load(path)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        _tell(report, path, [f"{place or 'content'}: {first['msg']} ({error.error_count()} faults)"])
        return None


def _tell(report: VerifyReport, path: Path, problems: list[str]) -> None:
    report.problems.extend(f"{'/'.join(path.parts[-3:])}: {problem}" for problem in problems)


def _history_problems(params: CifarParams, mode: Mode, rows: list[HistoryRow]) -> list[str]:
    epochs = [row.epoch for row in rows]
    problems = []
    if epochs != list(range(1, params.epochs + 1)):
        problems.append(f"epochs are {epochs}, expected 1 to {params.epochs}")
    expected = {
        "mode": mode,
        "optimizer_steps": params.steps_per_epoch,
        "gradient_syncs": params.syncs_per_epoch(mode),
    }
    problems.extend(
        f"epoch {row.epoch} has {key} {getattr(row, key)}, expected {value}"
        for row in rows
        for key, value in expected.items()
        if getattr(row, key) != value
    )
    return problems


def _report_problems(params: CifarParams, mode: Mode, scores: Report) -> list[str]:
    matrix = scores.confusion_matrix
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        return ["confusion_matrix is not square"]
    problems = [] if scores.mode == mode else [f"mode is {scores.mode!r}, expected {mode!r}"]
    total = sum(map(sum, matrix))
    if total != params.test_size:
        problems.append(f"the confusion matrix counts {total} images, the test set has {params.test_size}")
    accuracy = sum(matrix[index][index] for index in range(len(matrix))) / max(1, total)
    if not abs(accuracy - scores.model_test_accuracy) <= TOLERANCE:
        problems.append(f"model_test_accuracy is {scores.model_test_accuracy}, the matrix gives {accuracy}")
    # The names of the rows are not stored here, so confusions are compared by their counts.
    counts = [item["count"] for item in top_confusions(matrix, [str(index) for index in range(len(matrix))])]
    stored = [item.count for item in scores.top_confusions]
    if counts != stored:
        problems.append(f"top_confusions count {stored}, the matrix gives {counts}")
    if not any(abs(sum(row) / max(1, total) - scores.baseline_accuracy) <= TOLERANCE for row in matrix):
        problems.append(f"baseline_accuracy {scores.baseline_accuracy} is not the share of any class in the test set")
    return problems


def _note_baseline(scores: Report, report: VerifyReport) -> list[str]:
    found = {"class": scores.baseline_class, "accuracy": scores.baseline_accuracy}
    if report.baseline is None:
        report.baseline = found
    return [] if report.baseline == found else [f"baseline {found} differs from the other mode's {report.baseline}"]


def _ratio(params: CifarParams, report: VerifyReport) -> float | None:
    every, no_sync = (row["gradient_syncs"] for row in report.rows)
    steps = [row["optimizer_steps"] for row in report.rows]
    if steps[0] != steps[1]:
        report.problems.append(f"optimizer steps differ between the modes: {steps[0]} and {steps[1]}")
    if not every or not no_sync:
        return None  # the missing count is already reported
    if every != params.accum_steps * no_sync:
        report.problems.append(
            f"{every} synchronisations of every / {no_sync} of no_sync is {every / no_sync:g}, "
            f"expected exactly {params.accum_steps}"
        )
    return float(every / no_sync)


def _pass_line(params: CifarParams, ratio: float | None) -> str:
    counts = ", ".join(
        f"{mode} {params.syncs_per_epoch(mode)} synchronisations in {params.steps_per_epoch} steps"
        for mode in params.modes
    )
    return f"PASS: per epoch {counts}" + (f"; ratio {ratio:g}" if ratio is not None else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report as one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", required=True, type=Path)
    options = parser.parse_args(arguments)
    report = verify(RunPaths(options.run_dir))
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
