"""Rows written in the transaction of a final state change: a webhook delivery, and the checks of the result."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Table, delete, insert, select
from sqlmodel import Session, col

from app.clock import rfc3339
from app.db import database_time
from app.runs.derived import Delivery, RunCheck, RunFacts
from app.runs.models import Run, RunTag
from trainer.contract.events import encodable
from trainer.contract.result import Check

RUN: Final[Table] = Run.__table__  # type: ignore[attr-defined]

KEPT_OF_CHECK: Final = {"name", "title", "passed", "measured", "limit", "relation", "strict", "unit"}


def record_end(session: Session, run_id: int) -> None:
    """Record that a run has ended, in the caller's transaction: a process killed right after it loses no message.

    Written whether or not an address is set; the dispatcher decides about that.
    """
    # The table's columns, not the object: the caller may have unwritten changes to the object.
    row = session.execute(select(RUN).where(RUN.c.id == run_id)).one()
    tags = session.execute(select(col(RunTag.tag)).where(col(RunTag.run_id) == run_id).order_by(col(RunTag.tag)))
    run: dict[str, Any] = {
        "id": row.id,
        "name": row.name,
        "tags": list(tags.scalars()),
        "kind": row.kind,
        "preset": row.preset,
        "state": row.state,
        "reason": row.reason,
        "verdict": row.verdict,
        "created_at": rfc3339(row.created_at),
        "started_at": rfc3339(row.started_at),
        "finished_at": rfc3339(row.finished_at),
    }
    session.add(Delivery(run_id=run_id, run=run, next_at=database_time(session)))
    session.flush()


def record_checks(session: Session, run_id: int, kind: str, checks: Sequence[Check]) -> None:
    """Store a result's checks as rows, replacing earlier rows of the run."""
    session.execute(delete(RunCheck).where(col(RunCheck.run_id) == run_id))
    rows = [{"run_id": run_id, "kind": kind, **kept_of_check(check)} for check in checks]
    if rows:
        session.execute(insert(RunCheck), rows)
    facts = session.get(RunFacts, run_id) or RunFacts(run_id=run_id)
    facts.checks_read = True
    session.add(facts)
    session.flush()


def kept_of_check(check: Check) -> dict[str, Any]:
    """Return a check as the values of a row, without its run."""
    fields: dict[str, Any] = encodable(check.model_dump(mode="json", include=KEPT_OF_CHECK))
    # JSON can contain half a surrogate pair, which no database stores: it must not keep a run from ending.
    for name in ("name", "title", "unit"):
        fields[name] = fields[name].encode(errors="replace").decode()
    return fields
