"""Two to ten runs side by side: parameters, checks, summaries and metrics."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlmodel import Session

from app.runs.errors import refused
from app.runs.store import get_run_document
from app.runs.telemetry.series import metrics

FEWEST: Final = 2
MOST: Final = 10
HEAD: Final = ("id", "name", "tags", "kind", "preset", "state", "reason", "verdict", "created_at", "finished_at")
JUDGED: Final = ("passed", "measured", "limit", "unit")
READ: Final = ("relation", "strict")
"""How a check is read: the kind's, not the run's, and so no difference between runs."""


def read_ids(text: str) -> list[int]:
    """Return the run numbers of `1,2,3`. Raises Refused unless there are two to ten different ones."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise refused("ids", f"needs run numbers with commas between, such as 1,2; given {text[:80]!r}")
    ids = list(dict.fromkeys(int(word) for word in words))
    if not FEWEST <= len(ids) <= MOST:
        raise refused("ids", f"needs {FEWEST} to {MOST} different runs, given {len(ids)}")
    return ids


def compare(
    session: Session, ids: Sequence[int], results: Sequence[Mapping[str, Any]], max_points: int = 500
) -> dict[str, Any]:
    """Return the runs side by side; every list of values has one entry per run, null where a run has none.

    `results` has the result of each run, empty where it has none.
    `params` and `summary` rows say whether the runs differ; metrics keep one series per run and rank.
    Raises NotFound naming the run.
    """
    runs = [get_run_document(session, run_id) for run_id in ids]
    return {
        "ids": list(ids),
        "runs": [{name: run[name] for name in HEAD} for run in runs],
        "params": _rows([run["params"] for run in runs]),
        "checks": _checks(results),
        "summary": _rows([_flat(document.get("summary", {})) for document in results]),
        "metrics": [_series(session, run_id, max_points) for run_id in ids],
    }


def _flat(summary: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Spread nested mappings (`modes.no_sync.test_loss`), so that one row is one number; lists stay whole."""
    flat: dict[str, Any] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _rows(columns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for column in columns for name in column)
    rows = []
    for name in names:
        values = [column.get(name) for column in columns]
        rows.append({"name": name, "values": values, "differs": _differ(values, columns)})
    return rows


def _differ(values: Sequence[Any], columns: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether values differ between the runs that have any: a run without a result differs in nothing."""
    there = [value for value, column in zip(values, columns, strict=True) if column]
    return any(value != there[0] for value in there)


def _checks(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    columns = [{check["name"]: check for check in document.get("checks", [])} for document in results]
    titles = {name: check["title"] for column in columns for name, check in column.items()}
    rows = []
    for name, title in titles.items():
        checks = [column.get(name) for column in columns]
        judged = [check and {field: check[field] for field in JUDGED} for check in checks]
        kept = [check and {field: check[field] for field in (*JUDGED, *READ)} for check in checks]
        rows.append({"name": name, "title": title, "values": kept, "differs": _differ(judged, columns)})
    return rows


def _series(session: Session, run_id: int, max_points: int) -> dict[str, Any]:
    return {"id": run_id, "series": metrics(session, run_id, max_points=max_points)["series"]}
