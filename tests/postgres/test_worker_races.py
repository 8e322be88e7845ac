"""Several workers on one database: limits, event numbers, leases and folders, with locks and without."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import col, select

from app.database import postgres
from app.db import read_session, why_unavailable, write_session
from app.host.processes import Identity
from app.runs import queue
from app.runs.models import Meta, RankUsage, Run, RunEvent, StageAttempt
from app.runs.requests import read_request
from app.runs.service import Service
from app.settings import Settings
from app.storage.orphans import remove_orphans
from tests.postgres.test_lost_updates import LOCKED, RUN_ROW, race
from tests.support.active import ME, running
from tests.support.race import Race
from trainer.contract.kinds import kinds, resolve_params
from trainer.contract.paths import RunPaths
from trainer.contract.placement import Offer
from worker import claim, records, recover
from worker.claim import Machine, Me
from worker.executors.base import RankUse
from worker.intake import Intake, LeaseLost
from worker.lines import Heard
from worker.recover import Orphan
from worker.usage import UsageLog

OTHER = Me(id="other", process=Identity(pid=2, start=1, boot="c"), host="elsewhere")
MACHINE = Machine(offer=Offer(), busy={}, max_cpu_runs=1)


def queued(engine: Engine) -> int:
    params = resolve_params(kinds()["token-parity"], "quick", {"device": "cpu"}).model_dump(mode="json")
    with write_session(engine) as session:
        return queue.number_of(queue.insert_run(session, kind="token-parity", params=params))


def adopt(engine: Engine, run_id: int) -> Callable[[], bool]:
    return lambda: recover.adopt(engine, OTHER, Orphan(run_id=run_id, worker_id=ME.id))


@LOCKED
def test_limit_of_runs_holds_for_all_workers(engine: Engine, locked: bool) -> None:
    first, second = queued(engine), queued(engine)
    ended = race(
        engine,
        locked,
        lambda: claim.claim(engine, ME, MACHINE),
        lambda: claim.claim(engine, OTHER, MACHINE, only=second),
        r"UPDATE run SET state",
    )
    assert (ended.first, ended.second) == (first, None if locked else second)
    with read_session(engine) as session:
        active = session.exec(select(Run.id).where(col(Run.state).in_(claim.ACTIVE))).all()
    assert len(active) == (1 if locked else 2)


def test_claim_skips_a_run_that_is_being_changed(engine: Engine) -> None:
    held, free = queued(engine), queued(engine)

    def hold() -> str:
        with write_session(engine) as session:
            return queue.request_cancel(session, held).state

    wide = Machine(offer=Offer(), busy={}, max_cpu_runs=2)
    ended = Race(engine).run(hold, lambda: claim.claim(engine, ME, wide), after=RUN_ROW)
    assert (ended.first, ended.second, ended.waited) == ("cancelled", free, False)


def reader(engine: Engine, settings: Settings, run_id: int, worker_id: str) -> Intake:
    paths = RunPaths(settings.runs_dir / str(run_id)).attempt("train", 1)
    return Intake(engine, run_id=run_id, worker_id=worker_id, stage="train", attempt=1, paths=paths)


@LOCKED
def test_events_are_numbered_once(engine: Engine, settings: Settings, locked: bool) -> None:
    run_id = running(engine)
    with write_session(engine) as session:
        session.add(StageAttempt(run_id=run_id, stage="train", attempt=1, position=0, state="running"))
    paths = RunPaths(settings.runs_dir / str(run_id)).attempt("train", 1)
    paths.root.mkdir(parents=True)
    lines = [{"seq": number, "t": 1.0, "type": "message", "level": "info", "text": "x"} for number in range(5)]
    paths.events(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = reader(engine, settings, run_id, ME.id)

    def take_over() -> bool:
        adopted = adopt(engine, run_id)()
        return adopted and reader(engine, settings, run_id, OTHER.id).pull()

    ended = race(engine, locked, before.pull, take_over, r"SELECT run\.next_event_id")
    if locked:
        assert (ended.first, ended.second) == (True, False)  # nothing is left to read
    else:
        assert ended.second is True
        assert isinstance(ended.first, Exception)
        assert "duplicate key" in str(ended.first)
    with read_session(engine) as session:
        assert list(session.exec(select(RunEvent.id).order_by(col(RunEvent.id)))) == [1, 2, 3, 4, 5]
    with paths.events(0).open("a") as handle:
        handle.write(json.dumps({**lines[0], "seq": 5}) + "\n")
    with pytest.raises(LeaseLost):
        before.pull()


@LOCKED
def test_samples_are_the_owners(engine: Engine, locked: bool) -> None:
    run_id = running(engine)
    log = UsageLog(engine, run_id=run_id, worker_id=ME.id, stage="train", attempt=1)
    use = {0: RankUse(cpu_seconds=1.0, rss_bytes=2**40)}
    ended = race(
        engine,
        locked,
        lambda: log.tick({0: Heard(started=True)}, lambda _devices: use),
        adopt(engine, run_id),
        r"SELECT run\.worker_id",
    )
    assert (ended.first, ended.second) == (None, True)
    with read_session(engine) as session:
        assert session.exec(select(RankUsage.rss_bytes)).all() == [2**40]


@LOCKED
def test_folder_is_made_for_the_owner_alone(engine: Engine, settings: Settings, locked: bool) -> None:
    run_id, folder = running(engine), settings.runs_dir / "new"
    seen: list[bool] = []

    def take_over() -> bool:
        adopted = adopt(engine, run_id)()
        seen.append(folder.exists())
        return adopted

    ended = race(engine, locked, lambda: records.make_run_folder(engine, run_id, ME, folder), take_over, RUN_ROW)
    assert (ended.first, ended.second, seen) == (None, True, [locked])


@LOCKED
def test_orphans_are_not_runs_being_recorded(engine: Engine, settings: Settings, locked: bool) -> None:
    service = Service(engine=engine, settings=settings)
    folder = settings.runs_dir / "1"

    def record() -> int:
        return service.submit(read_request({"kind": "token-parity"}), actor="test")

    def remove() -> int:
        folder.mkdir(parents=True)  # as a retry or an import does before its row is visible
        os.utime(folder, (0, 0))
        return len(remove_orphans(engine, settings))

    ended = race(engine, locked, record, remove, "INSERT INTO audit_entry")
    assert ended.first == 1
    assert (ended.second, folder.exists()) == ((0, True) if locked else (1, False))


def test_database_gets_one_identity(engine: Engine) -> None:
    with write_session(engine) as session:
        for row in session.exec(select(Meta)).all():
            session.delete(row)
    ended = Race(engine).run(
        lambda: records.database_id(engine), lambda: records.database_id(engine), after="INSERT INTO meta"
    )
    assert ended.waited
    assert ended.first == ended.second


def test_same_key_is_one_run(engine: Engine, settings: Settings) -> None:
    service, request = Service(engine=engine, settings=settings), read_request({"kind": "token-parity"})

    def submit() -> Any:
        return service.submit(request, actor="test", key="k")

    ended = Race(engine).run(submit, submit, after="INSERT INTO run ")
    assert ended.waited
    assert ended.first == ended.second == 1


def test_silent_transaction_loses_its_locks(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was stopped in the middle of a write keeps nobody waiting for long."""
    monkeypatch.setattr(postgres, "IDLE_MS", 100)
    run_id = running(engine)
    with pytest.raises(Exception, match="idle") as caught, write_session(engine) as stopped:  # noqa: PT012
        queue.hold_run(stopped, run_id)
        with write_session(engine) as session:
            queue.request_cancel(session, run_id)
        queue.hold_run(stopped, run_id)
    assert why_unavailable(caught.value) == "the transaction was idle for too long"
    assert records.load_run(engine, run_id).state == "stopping"
