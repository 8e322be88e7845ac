"""The end of a run as the worker writes it: verdict and checks in the transaction of the final state, or nothing."""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, event, update
from sqlmodel import col, select

from app.db import read_session, write_session
from app.host.processes import Identity
from app.runs import queue
from app.runs.derived import RunCheck, RunFacts
from app.runs.models import Run
from app.runs.results.trends import fill_checks, trend
from app.runs.states import Reason, State
from app.settings import Settings
from tests.support.ended import make_result
from trainer.contract.paths import RunPaths
from trainer.contract.result import Check, Result
from worker import records
from worker.claim import Me
from worker.facts import Facts
from worker.intake import LeaseLost
from worker.outcome import Outcome

ME = Me(id="me", process=Identity(pid=1, start=1, boot="b"))
DONE = Outcome(state=State.SUCCEEDED, reason=Reason.COMPLETED, failure=None, diagnosis="")
CHECKS = [
    Check(name="gradient_parity", title="Gradients agree", passed=True, measured=3e-8, limit=1e-6, unit="1"),
    Check(name="odd", title="half \ud83d", passed=None, measured="NaN", detail="long"),
]


def running(engine: Engine) -> int:
    with write_session(engine) as session:
        run_id = queue.number_of(queue.insert_run(session, kind="token-parity", params={}, worker_id="me"))
        queue.move(session, run_id, State.QUEUED, State.STARTING, actor="me")
        queue.move(session, run_id, State.STARTING, State.RUNNING, actor="me")
    return run_id


def finish(engine: Engine, run_id: int, result: Result | None, *, me: Me = ME) -> None:
    facts = Facts(stage="train")
    records.finish(engine, run_id, me, DONE, facts, attempt=records.NOT_STARTED, result=result)


def stored(engine: Engine, table: type[Any], run_id: int) -> list[Any]:
    with read_session(engine) as session:
        found = list(session.exec(select(table).where(col(table.run_id) == run_id)))
        session.expunge_all()
        return found


def state_of(engine: Engine, run_id: int) -> tuple[str, str | None]:
    with read_session(engine) as session:
        run = session.get_one(Run, run_id)
        return run.state, run.verdict


def test_checks_come_with_the_end(engine: Engine, settings: Settings) -> None:
    run_id = running(engine)
    finish(engine, run_id, make_result(*CHECKS))
    assert state_of(engine, run_id) == ("succeeded", "inconclusive")
    rows = {row.name: row for row in stored(engine, RunCheck, run_id)}
    assert (rows["gradient_parity"].measured, rows["gradient_parity"].passed) == (3e-8, True)
    assert (rows["odd"].measured, rows["odd"].passed, rows["odd"].title) == ("NaN", None, "half ?")
    assert [row.checks_read for row in stored(engine, RunFacts, run_id)] == [True]
    assert fill_checks(engine, settings.runs_dir) == 0  # nothing is left for readers to store
    with read_session(engine) as session:
        assert [item["run_id"] for item in trend(session, "token-parity", "gradient_parity")["items"]] == [run_id]


def test_run_without_result_keeps_none(engine: Engine) -> None:
    run_id = running(engine)
    failed = Outcome(state=State.FAILED, reason=Reason.RANK_EXIT, failure=None, diagnosis="rank 1 exited with code 3")
    records.finish(engine, run_id, ME, failed, Facts(stage="train"), attempt=records.NOT_STARTED)
    assert state_of(engine, run_id) == ("failed", None)
    assert stored(engine, RunCheck, run_id) == stored(engine, RunFacts, run_id) == []


def test_lost_lease_writes_nothing(engine: Engine) -> None:
    run_id = running(engine)
    other = Me(id="other", process=ME.process)
    with pytest.raises(LeaseLost):
        finish(engine, run_id, make_result(*CHECKS), me=other)
    assert state_of(engine, run_id) == ("running", None)
    assert stored(engine, RunCheck, run_id) == []


def test_cancel_before_the_end_keeps_none(engine: Engine) -> None:
    run_id = running(engine)
    with write_session(engine) as session:
        session.execute(update(Run).where(col(Run.id) == run_id).values(cancel_requested_at=datetime.now(UTC)))
    with pytest.raises(records.CancelCameFirst):
        finish(engine, run_id, make_result(*CHECKS))
    assert stored(engine, RunCheck, run_id) == []


def test_end_and_checks_are_one_transaction(engine: Engine) -> None:
    run_id = running(engine)

    def fail(*given: Any) -> None:
        if given[2].startswith("INSERT INTO run_check"):
            raise OSError("killed here")

    event.listen(engine, "before_cursor_execute", fail)
    with pytest.raises(OSError, match="killed here"):
        finish(engine, run_id, make_result(*CHECKS))
    event.remove(engine, "before_cursor_execute", fail)
    assert state_of(engine, run_id) == ("running", None)
    finish(engine, run_id, make_result(*CHECKS))
    assert len(stored(engine, RunCheck, run_id)) == 2


def test_older_runs_are_still_caught_up(engine: Engine, settings: Settings) -> None:
    new, old = running(engine), running(engine)
    finish(engine, new, make_result(*CHECKS))
    with write_session(engine) as session:  # as a version before this one ended it
        queue.move(session, old, State.RUNNING, State.SUCCEEDED, reason=Reason.COMPLETED, actor="w", verdict="pass")
    path = RunPaths(settings.runs_dir / str(old)).result
    path.parent.mkdir(parents=True)
    make_result().save(path)
    assert fill_checks(engine, settings.runs_dir) == 1
    assert [row.name for row in stored(engine, RunCheck, old)] == ["gradient_parity"]
