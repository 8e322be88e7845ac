"""The diagnosis of a run for its page, and that of the run it retries next to it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.runs.documents import RunDocument
from app.runs.results.reading import Reading, read_result
from app.web.views.panels import PanelView, heat_rows
from trainer.contract.diagnosis import Diagnosis
from trainer.contract.weights import weights_panel

TITLES: Final = {
    "clean": "The gradients are right",
    "ambiguous": "Several mistakes explain the gradients equally well",
    "unexplained": "No known mistake explains the gradients",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisView:
    """One diagnosis, ready for its template."""

    run_id: int
    verdict: str
    title: str
    """The mistakes by name, or that there is none."""
    content: Diagnosis
    heat: PanelView | None
    """Observed weights, with the expected ones where they differ."""


def diagnosis_view(run_id: int, reading: Reading) -> DiagnosisView | None:
    """Return the diagnosis in a result, or None if it has none."""
    result = reading.result
    if result is None or result.diagnosis is None:
        return None
    found = result.diagnosis
    panel = weights_panel(found)
    heat = None
    if panel is not None:
        data = {**panel.model_dump(mode="json"), "title": f"Weights of run {run_id}"}
        heat = PanelView(id=f"weights-of-run-{run_id}", type="heat", data=data, view=heat_rows(data))
    return DiagnosisView(run_id=run_id, verdict=str(result.verdict), title=title_of(found), content=found, heat=heat)


def title_of(found: Diagnosis) -> str:
    """Return the mistakes of a diagnosis as a title."""
    if found.status == "ambiguous" and len(found.alternatives) < 2:
        return f"Possible cause: {named(found)}"
    if found.status == "identified":
        return f"Cause: {named(found)}"
    return TITLES[found.status]


def named(found: Diagnosis) -> str:
    """Return the names of all causes as words."""
    return " and ".join(cause.name.replace("_", " ") for cause in found.causes)


def retried_diagnosis(runs_dir: Path, run: RunDocument) -> DiagnosisView | None:
    """Return the diagnosis of the run that this one retries; None without one, or if that run is gone."""
    if run.retry_of is None:
        return None
    return diagnosis_view(run.retry_of, read_result(runs_dir, run.retry_of, kind=run.kind))
