"""Data of every part of the run page, from the run's document and its result."""

from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from app.formats import number
from app.runs.documents import RunDocument
from app.runs.results import artifacts
from app.runs.results.reading import Reading, read_result, told
from app.runs.states import State
from app.runs.telemetry.logs import attempt_logs
from app.web.views.answer import activity, deciding_checks, lead_panel
from app.web.views.diagnosis import diagnosis_view, retried_diagnosis
from app.web.views.markdown import is_table
from app.web.views.panels import panel_views
from app.web.views.previews import offered
from app.web.views.ranks import ranks_view
from trainer.contract.checkpoints import resumable
from trainer.contract.kinds import kinds

MOST_OUTPUTS: Final = 24
LONGEST: Final = 600
"""Characters of a list in the summary."""


def run_context(runs_dir: Path, run: RunDocument) -> dict[str, Any]:
    """Return the template context of the run page; `result` is None while there is none."""
    final = State(run.state).is_final
    reading = read_result(runs_dir, run.id) if final else Reading()
    result = reading.document or None
    checks = result["checks"] if result else []
    panels = panel_views(result["panels"]) if result else []
    spec = kinds().get(run.kind)
    diagnosis = diagnosis_view(run.id, reading)
    return {
        "diagnosis": diagnosis,
        "retried": retried_diagnosis(runs_dir, run) if diagnosis else None,
        "run": run,
        "ranks": ranks_view(run.ranks),
        "run_id": run.id,
        "final": final,
        "result": result,
        "result_problem": told(run.id, reading),
        "panels": panels,
        "lead": lead_panel(result, panels) if result else None,
        "deciding": deciding_checks(checks, spec.headline_checks if spec else ()),
        "counted": counted(checks),
        "question": spec.question if spec else "",
        "activity": activity(run),
        "summary_rows": summary_rows(result["summary"]) if result else [],
        "resumable": final and run.state != State.SUCCEEDED and resumable(runs_dir / str(run.id)),
    }


def files_context(runs_dir: Path, run: RunDocument) -> dict[str, Any]:
    """Return the files of a run: its artifacts, and the first of its ranks' outputs."""
    root = runs_dir / str(run.id)
    attempts = ((stage.name, stage.attempt) for stage in run.stages if stage.attempt)
    outputs = chain.from_iterable(attempt_logs(root, *attempt) for attempt in attempts)
    return {
        "artifacts": [offered(item) for item in artifacts.artifacts(runs_dir, run.id).items],
        "log_files": list(islice(outputs, MOST_OUTPUTS)),
    }


def counted(checks: Sequence[Mapping[str, Any]]) -> str:
    """Return how many checks passed, failed and were not judged, as text."""
    passed = sum(check["passed"] is True for check in checks)
    failed = sum(check["passed"] is False for check in checks)
    words = f"{passed} of {len(checks)} checks passed"
    words += f", {failed} failed" if failed else ""
    left = len(checks) - passed - failed
    return words + (f", {left} could not be judged" if left else "") + "."


def summary_rows(summary: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Return (name, text) for every number of a summary that is not in a table; nested names are joined with dots."""
    rows: list[tuple[str, str]] = []
    for name, value in summary.items():
        if is_table(value):
            continue
        if isinstance(value, Mapping):
            rows += summary_rows(value, f"{before}{name}.")
        else:
            rows.append((f"{before}{name}", _shortened(value)))
    return rows


def _shortened(value: Any) -> str:
    """Return a value as text, of a list of many objects only how many there are."""
    text = _text(value)
    return f"{len(value):,} entries, listed in result.json" if isinstance(value, list) and len(text) > LONGEST else text


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        nested = any(isinstance(item, list | dict) for item in value)
        return "; ".join(_text(item) for item in value) if nested else ", ".join(number(item) for item in value)
    return number(value)
