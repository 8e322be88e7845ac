"""The one check of a run that stands for it in a list: what its kind names first, or what did not pass."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from app.runs.derived import RunCheck
from app.runs.documents import RunSummary
from trainer.contract.kinds import kinds


def headline_checks(session: Session, runs: Sequence[RunSummary]) -> dict[int, dict[str, Any]]:
    """Return the check of each of these runs by its id, as a document; runs without judged checks are left out."""
    query = select(RunCheck).where(col(RunCheck.run_id).in_([run.id for run in runs]))
    found: dict[int, list[RunCheck]] = {}
    for check in session.scalars(query.order_by(col(RunCheck.name))):
        found.setdefault(check.run_id, []).append(check)
    return {run_id: headline(checks).model_dump() for run_id, checks in found.items()}


def headline(checks: Sequence[RunCheck]) -> RunCheck:
    """Return the first headline check of the kind; one that did not pass wins over all that did."""
    spec = kinds().get(checks[0].kind)
    names = list(spec.headline_checks) if spec is not None else []

    def rank(check: RunCheck) -> tuple[bool, int]:
        place = names.index(check.name) if check.name in names else len(names)
        return check.passed is True, place

    return min(checks, key=rank)
