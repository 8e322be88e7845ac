"""One check over all runs of a kind: its number against its limit, run by run, to make regressions visible."""

from pathlib import Path
from typing import Any, Final

from pydantic import Field
from sqlalchemy import Engine, func, or_, select
from sqlmodel import Session, col

from app.clock import rfc3339
from app.db import ASIDE_MS, read_session, write_session
from app.documents import Document
from app.runs.derived import RunCheck, RunFacts
from app.runs.errors import NotFound, refused
from app.runs.models import Run
from app.runs.outbox import record_checks
from app.runs.queue import hold_runs
from app.runs.results.bounds import difference, share
from app.runs.results.judged import JudgedNumber
from app.runs.results.reading import read_result
from app.runs.states import State
from trainer.contract.kinds import kinds
from trainer.contract.result import Relation

MOST_POINTS: Final = 1000
FILL_AT_ONCE: Final = 100
"""Maximum number of result files read per answer: runs that ended under an earlier version are added step by step."""


class RunInTrend(Document):
    """The run of a point."""

    run_id: int
    name: str
    preset: str | None
    verdict: str | None
    finished_at: str | None


class TrendItem(JudgedNumber, RunInTrend):
    """One run in a trend."""

    margin: float | None = Field(
        description="measured / limit, the share of the limit that was used; only for at_most."
    )
    difference: float | None = Field(description="measured - limit.")


class Trend(Document):
    """One check over the newest runs of a kind, oldest first."""

    kind: str
    check: str
    title: str
    relation: Relation = Field(description="From the newest run, as are title, unit and strict.")
    strict: bool
    unit: str
    total: int = Field(description="Number of runs with this check.")
    items: list[TrendItem]


class TrendCheck(Document):
    """A check that runs of a kind have."""

    check: str
    runs: int
    title: str


class TrendChecks(Document):
    """The checks with trends: the answer if no check is named."""

    kind: str
    checks: list[TrendCheck]


def fill_checks(engine: Engine, runs_dir: Path, most: int = FILL_AT_ONCE) -> int:
    """Read the results of succeeded runs whose checks are not stored yet, newest first, and return how many were read.

    A result that cannot be read counts as read: its run has no point in a trend. Raises OperationalError if there are
    checks to store and the database is locked or full: a trend without those runs would be wrong.
    """
    unread = (
        select(col(Run.id), col(Run.kind))
        .outerjoin(RunFacts, col(RunFacts.run_id) == col(Run.id))
        .where(col(Run.state) == State.SUCCEEDED, col(Run.deleting).is_(False))
        .where(or_(col(RunFacts.run_id).is_(None), col(RunFacts.checks_read).is_(False)))
        .order_by(col(Run.id).desc())
        .limit(most)
    )
    with read_session(engine) as session:
        rows = [(int(run_id), str(kind)) for run_id, kind in session.execute(unread)]
    found = [(run_id, kind, read_result(runs_dir, run_id).result) for run_id, kind in rows]
    if found:
        with write_session(engine, patience_ms=ASIDE_MS) as session:
            alive = hold_runs(session, [run_id for run_id, *_ in found])
            for run_id, kind, result in found:
                if run_id in alive:
                    record_checks(session, run_id, kind, result.checks if result else [])
    return len(found)


def trend(session: Session, kind: str, check: str, limit: int = 200, *, preset: str = "") -> Trend:
    """Return the newest `limit` runs of `kind` with `check`; with `preset`, only runs of that preset.

    Raises Refused for an unknown kind, NotFound for a check that no run of the kind has.
    """
    if kind not in kinds():
        raise refused("kind", f"{kind[:80]!r} is unknown; kinds are {', '.join(kinds())}", "unknown_kind")
    wanted = [col(RunCheck.kind) == kind, col(RunCheck.name) == check, col(Run.deleting).is_(False)]
    if preset:
        wanted.append(col(Run.preset) == preset)
    both = col(Run.id) == col(RunCheck.run_id)
    rows = session.execute(
        select(RunCheck, col(Run.name), col(Run.verdict), col(Run.preset), col(Run.finished_at))
        .join(Run, both)
        .where(*wanted)
        .order_by(col(RunCheck.run_id).desc())
        .limit(max(1, min(limit, MOST_POINTS)))
    ).all()
    if not rows:
        known = ", ".join(item.check for item in trend_checks(session, kind)) or "none yet"
        of = f" with preset {preset[:80]!r}" if preset else ""
        raise NotFound("unknown_check", f"no run of {kind}{of} has a check {check[:80]!r}; available checks: {known}")
    newest: RunCheck = rows[0][0]
    items = [
        TrendItem(
            run_id=row.run_id,
            name=name,
            preset=preset,
            verdict=verdict,
            finished_at=rfc3339(finished_at),
            **_judged(row),
        )
        for row, name, verdict, preset, finished_at in reversed(rows)
    ]
    total = session.scalar(select(func.count()).select_from(RunCheck).join(Run, both).where(*wanted))
    return Trend(
        kind=kind,
        check=check,
        title=newest.title,
        relation=newest.relation,
        strict=newest.strict,
        unit=newest.unit,
        total=total or 0,
        items=items,
    )


def _judged(row: RunCheck) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in ("passed", "measured", "limit", "relation", "strict")}
    return {**fields, "margin": share(fields), "difference": difference(fields)}


def trend_checks(session: Session, kind: str, *, preset: str = "") -> list[TrendCheck]:
    """Return the checks that runs of a kind have, with how many runs, in order of name."""
    query = select(col(RunCheck.name), func.count(), func.max(col(RunCheck.title))).where(col(RunCheck.kind) == kind)
    if preset:
        query = query.join(Run, col(Run.id) == col(RunCheck.run_id)).where(col(Run.preset) == preset)
    rows = session.execute(query.group_by(col(RunCheck.name)).order_by(col(RunCheck.name)))
    return [TrendCheck(check=name, runs=runs, title=title) for name, runs, title in rows]
