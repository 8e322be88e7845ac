"""Read, then write: two transactions on the same row take turns, and the twin without locks loses an update."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Engine, delete, func
from sqlalchemy.exc import IntegrityError
from sqlmodel import select

from app.db import read_session, write_session
from app.runs import queue
from app.runs.derived import Delivery, DeliveryAttempt, RunCheck, RunFacts
from app.runs.editing import edit_run, read_changes
from app.runs.errors import NotFound, Refused
from app.runs.models import AuditEntry, Run, RunTag
from app.runs.queue import AlreadyFinal, StaleState
from app.runs.removal import delete_run
from app.runs.results.trends import fill_checks
from app.runs.states import Reason, State
from app.settings import Settings
from app.sharing.deliveries import redeliver
from app.sharing.webhook import deliver_due
from app.storage.usage import run_sizes
from tests.support.active import ME, running
from tests.support.ended import end_run
from tests.support.race import Ended, Race
from tests.support.receiver import listening
from worker import records
from worker.facts import Facts
from worker.outcome import Outcome

RUN_ROW = r"FROM run \nWHERE run\.id ="
HELD_RUNS = r"run\.id IN .*ORDER BY run\.id"
LOCKED = pytest.mark.parametrize("locked", [True, False], ids=["locks", "no locks"])


def race(engine: Engine, locked: bool, first: Callable[[], Any], second: Callable[[], Any], after: str) -> Ended:
    """Run both, with or without locks; without any, the second never waits for the first to read."""
    between = Race(engine)
    with nullcontext() if locked else between.without_locks():
        ended = between.run(first, second, after=after)
    assert ended.waited is locked
    return ended


def count(engine: Engine, *conditions: Any) -> int:
    with read_session(engine) as session:
        return session.exec(select(func.count()).where(*conditions)).one()


def load(engine: Engine, run_id: int) -> Run:
    return records.load_run(engine, run_id)


@LOCKED
def test_edits_keep_the_limit_of_tags(engine: Engine, settings: Settings, locked: bool) -> None:
    run_id = end_run(engine, settings.runs_dir)

    def adding(letter: str) -> Callable[[], Any]:
        wanted = read_changes({"add_tags": [f"{letter}{number}" for number in range(11)]})
        return lambda: edit_run(engine, run_id, wanted, actor="test")

    ended = race(engine, locked, adding("a"), adding("b"), "FROM run_tag")
    assert isinstance(ended.second, Refused) is locked
    assert count(engine, RunTag.run_id == run_id) == (11 if locked else 22)  # at most 20


@LOCKED
def test_pinned_run_is_not_removed(engine: Engine, settings: Settings, locked: bool) -> None:
    run_id = end_run(engine, settings.runs_dir)

    def remove() -> None:
        delete_run(engine, settings, run_id, actor="test", spare_pinned=True)

    def pin() -> Any:
        return edit_run(engine, run_id, read_changes({"pinned": True}), actor="test")

    ended = race(engine, locked, remove, pin, RUN_ROW)
    if locked:
        assert isinstance(ended.second, NotFound)
    else:
        assert ended.second == ["pinned"]  # the answer says that it is pinned, and the run is gone
    assert count(engine, Run.id == run_id) == 0


@LOCKED
def test_a_run_is_deleted_once(engine: Engine, settings: Settings, locked: bool) -> None:
    run_id = end_run(engine, settings.runs_dir)

    def remove() -> None:
        delete_run(engine, settings, run_id, actor="test")

    ended = race(engine, locked, remove, remove, RUN_ROW)
    assert (ended.first is None) is locked  # without locks it changes a row that is gone
    assert ended.second is None
    assert count(engine, AuditEntry.action == "delete") == 1


@LOCKED
def test_two_cancels_agree(engine: Engine, locked: bool) -> None:
    run_id = running(engine)

    def cancel() -> str:
        with write_session(engine) as session:
            return queue.request_cancel(session, run_id).state

    ended = race(engine, locked, cancel, cancel, RUN_ROW)
    if locked:
        assert (ended.first, ended.second) == ("stopping", "stopping")
    else:
        assert isinstance(ended.first, StaleState)


@LOCKED
def test_cancel_waits_for_the_end(engine: Engine, locked: bool) -> None:
    run_id = running(engine)
    done = Outcome(state=State.SUCCEEDED, reason=Reason.COMPLETED, failure=None, diagnosis="")

    def finish() -> None:
        records.finish(engine, run_id, ME, done, Facts(stage="train"), attempt=records.NOT_STARTED)

    def cancel() -> None:
        with write_session(engine) as session:
            queue.request_cancel(session, run_id)

    ended = race(engine, locked, finish, cancel, RUN_ROW)
    if locked:
        assert (ended.first, load(engine, run_id).state) == (None, "succeeded")
        assert isinstance(ended.second, AlreadyFinal)
    else:
        assert isinstance(ended.first, StaleState)


@LOCKED
def test_move_counts_its_history(engine: Engine, locked: bool) -> None:
    run_id = running(engine)

    def end(reason: Reason) -> Callable[[], None]:
        def moving() -> None:
            with write_session(engine) as session:
                queue.move(session, run_id, State.RUNNING, State.FAILED, reason=reason, actor="w")

        return moving

    ended = race(engine, locked, end(Reason.HANG), end(Reason.RANK_EXIT), r"SELECT run\.started_at")
    lost, winner = (ended.second, "hang") if locked else (ended.first, "rank_exit")
    assert isinstance(lost, StaleState)
    assert load(engine, run_id).reason == winner


@LOCKED
def test_stored_checks_wait_for_a_removal(engine: Engine, settings: Settings, locked: bool) -> None:
    run_id = end_run(engine, settings.runs_dir)
    with write_session(engine) as session:
        session.execute(delete(RunCheck))
        session.execute(delete(RunFacts))

    def remove() -> None:
        delete_run(engine, settings, run_id, actor="test")

    ended = race(engine, locked, lambda: fill_checks(engine, settings.runs_dir), remove, HELD_RUNS)
    assert ended.first == 1 if locked else isinstance(ended.first, IntegrityError)
    assert count(engine, RunCheck.run_id == run_id) == 0


@LOCKED
def test_sizes_wait_for_a_removal(engine: Engine, settings: Settings, locked: bool) -> None:
    run_id = end_run(engine, settings.runs_dir)

    def remove() -> None:
        delete_run(engine, settings, run_id, actor="test")

    ended = race(engine, locked, lambda: run_sizes(engine, settings.runs_dir), remove, HELD_RUNS)
    assert list(ended.first) == [run_id] if locked else isinstance(ended.first, IntegrityError)
    assert count(engine, RunFacts.run_id == run_id) == 0


@pytest.fixture
def hooked(engine: Engine, settings: Settings) -> Any:
    """An ended run whose message is due, with a receiver."""
    with listening() as receiver:
        end_run(engine, settings.runs_dir)
        yield Settings(**{**settings.model_dump(), "webhook_url": receiver.url, "webhook_secret": "s"}), receiver


def test_senders_share_what_is_due(engine: Engine, hooked: Any) -> None:
    settings, receiver = hooked
    ended = Race(engine).run(
        lambda: deliver_due(engine, settings), lambda: deliver_due(engine, settings), after="SKIP LOCKED"
    )
    assert (ended.first, ended.second, ended.waited) == (1, 0, False)  # it does not wait for what another one sends
    assert len(receiver.received) == 1


def test_senders_without_locks_send_twice(engine: Engine, hooked: Any) -> None:
    settings, receiver = hooked
    between = Race(engine)
    with between.without_locks():
        ended = between.run(
            lambda: deliver_due(engine, settings),
            lambda: deliver_due(engine, settings),
            after=r"SELECT webhook_delivery\.id, .*ORDER BY webhook_delivery\.next_at",
        )
    assert len(receiver.received) == 2 or isinstance(ended.first, IntegrityError)


@LOCKED
def test_repeated_delivery_is_not_settled_away(engine: Engine, hooked: Any, locked: bool) -> None:
    settings, _receiver = hooked
    with read_session(engine) as session:
        number = session.exec(select(Delivery.id)).one()

    def again() -> str:
        return redeliver(engine, int(number or 0), actor="test").status

    row = r"FROM webhook_delivery \nWHERE webhook_delivery\.id ="
    ended = race(engine, locked, lambda: deliver_due(engine, settings), again, row)
    assert (ended.first, ended.second) == (1, "pending")
    with read_session(engine) as session:
        assert session.exec(select(Delivery.status)).one() == ("pending" if locked else "delivered")
        assert session.exec(select(func.count()).select_from(DeliveryAttempt)).one() == 1
