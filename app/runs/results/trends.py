"""One check over all runs of a kind: its number against its limit, run by run, so that a regression shows."""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, func, or_, select
from sqlmodel import Session, col

from app.clock import rfc3339
from app.db import read_session, write_session
from app.runs.derived import RunCheck, RunFacts
from app.runs.errors import NotFound, refused
from app.runs.models import Run
from app.runs.outbox import record_checks
from app.runs.results.bounds import difference, share
from app.runs.results.reading import read_result
from app.runs.states import State
from trainer.contract.kinds import kinds

MOST_POINTS: Final = 1000
FILL_AT_ONCE: Final = 100
"""Result files read before one answer: runs that ended under an earlier version are caught up with step by step."""


def fill_checks(engine: Engine, runs_dir: Path, most: int = FILL_AT_ONCE) -> int:
    """Read the results of succeeded runs whose checks are not kept yet, newest first, and return how many were read.

    A result that cannot be read counts as read: its run has no point in a trend.
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
        with write_session(engine) as session:
            alive = set(session.scalars(select(col(Run.id)).where(col(Run.id).in_([run_id for run_id, *_ in found]))))
            for run_id, kind, result in found:
                if run_id in alive:
                    record_checks(session, run_id, kind, result.checks if result else [])
    return len(found)


def trend(session: Session, kind: str, check: str, limit: int = 200, *, preset: str = "") -> dict[str, Any]:
    """Return the newest `limit` runs of `kind` with `check`, oldest first; with `preset`, only runs of that preset.

    `total` counts all such runs, `relation` and `strict` are the newest run's. An item's `margin` is measured / limit,
    the share of the limit used, as result pages show it: null unless the check is read as at_most, and where either is
    no finite number or the limit is 0. Its `difference` is measured - limit.
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
        known = ", ".join(item["check"] for item in trend_checks(session, kind)) or "none yet"
        of = f" with preset {preset[:80]!r}" if preset else ""
        raise NotFound("unknown_check", f"no run of {kind}{of} has a check {check[:80]!r}; checks there are: {known}")
    newest: RunCheck = rows[0][0]
    items = [
        {
            "run_id": row.run_id,
            "name": name,
            "preset": preset,
            "verdict": verdict,
            "finished_at": rfc3339(finished_at),
            **_judged(row),
        }
        for row, name, verdict, preset, finished_at in reversed(rows)
    ]
    total = session.scalar(select(func.count()).select_from(RunCheck).join(Run, both).where(*wanted))
    return {
        "kind": kind,
        "check": check,
        "title": newest.title,
        "relation": newest.relation,
        "strict": newest.strict,
        "unit": newest.unit,
        "total": total,
        "items": items,
    }


def _judged(row: RunCheck) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in ("passed", "measured", "limit", "relation", "strict")}
    return {**fields, "margin": share(fields), "difference": difference(fields)}


def trend_checks(session: Session, kind: str, *, preset: str = "") -> list[dict[str, Any]]:
    """Return the checks that runs of a kind have, with how many runs, in order of name."""
    query = select(col(RunCheck.name), func.count(), func.max(col(RunCheck.title))).where(col(RunCheck.kind) == kind)
    if preset:
        query = query.join(Run, col(Run.id) == col(RunCheck.run_id)).where(col(Run.preset) == preset)
    rows = session.execute(query.group_by(col(RunCheck.name)).order_by(col(RunCheck.name)))
    return [{"check": name, "runs": runs, "title": title} for name, runs, title in rows]
