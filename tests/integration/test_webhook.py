"""Webhooks against a real receiver: signed, retried, stored, and not lost in a crash."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, update
from sqlmodel import col, select

from app.clock import now
from app.db import read_session, write_session
from app.documents import to_json
from app.runs.derived import Delivery
from app.runs.errors import NotFound
from app.runs.models import Run
from app.runs.removal import delete_run
from app.runs.states import Reason, State
from app.schema import migrate
from app.settings import Settings
from app.sharing import webhook
from app.sharing.deliveries import DeliveryDocument, delivery_log, redeliver
from app.sharing.dispatcher import Dispatcher
from app.sharing.webhook import deliver_due, signature
from tests.support.ended import end_run
from tests.support.receiver import Receiver, listening
from tests.support.waiting import until

SECRET = "a shared secret"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with listening() as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path, receiver: Receiver) -> Settings:
    made = Settings(data_dir=tmp_path, webhook_url=receiver.url, webhook_secret=SECRET)
    migrate(made)
    return made


def log_of(engine: Engine) -> list[DeliveryDocument]:
    with read_session(engine) as session:
        return delivery_log(session).items


def make_due(engine: Engine) -> None:
    with write_session(engine) as session:
        session.execute(update(Delivery).values(next_at=now() - timedelta(seconds=1)))


def test_end_is_told_and_signed(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    run_id = end_run(engine, settings.runs_dir, name="nightly", tags=["gloo"])
    assert deliver_due(engine, settings) == 1
    headers, body = receiver.received[0]
    document = json.loads(body)
    assert document["event"] == "run.ended"
    assert document["run"]["id"] == run_id
    assert (document["run"]["state"], document["run"]["reason"], document["run"]["verdict"]) == (
        "succeeded",
        "completed",
        "pass",
    )
    assert (document["run"]["name"], document["run"]["tags"]) == ("nightly", ["gloo"])
    timestamp = headers["x-ddp-audit-timestamp"]
    expected = hmac.new(SECRET.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers["x-ddp-audit-signature"] == f"sha256={expected}"
    assert abs(now().timestamp() - int(timestamp)) < 60
    assert [(item["status"], len(item["attempts"])) for item in log_of(engine)] == [("delivered", 1)]
    assert deliver_due(engine, settings) == 0
    assert len(receiver.received) == 1


def test_signature_covers_time_and_body() -> None:
    whole = signature("s", 1, b"body")
    assert signature("s", 2, b"body") != whole
    assert signature("s", 1, b"bodz") != whole
    assert signature("t", 1, b"body") != whole


@pytest.mark.parametrize(
    ("state", "reason"),
    [(State.FAILED, Reason.RANK_SIGNAL), (State.LOST, Reason.WORKER_LOST), (State.SUCCEEDED, Reason.COMPLETED)],
)
def test_every_end_leaves_one_notice(engine: Engine, settings: Settings, state: State, reason: Reason) -> None:
    end_run(engine, settings.runs_dir, state=state, reason=reason)
    assert [(item["run"]["state"], item["run"]["reason"]) for item in log_of(engine)] == [(state, reason)]


def test_refused_end_leaves_no_notice(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("app.runs.queue.record_end", fail)
    with pytest.raises(ZeroDivisionError):
        end_run(engine, settings.runs_dir)
    assert log_of(engine) == []
    with read_session(engine) as session:
        assert session.exec(select(Run.state)).one() == "queued"  # the whole transaction is undone


def test_failure_is_retried_later(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    end_run(engine, settings.runs_dir)
    receiver.answers = [500, 302]
    deliver_due(engine, settings)
    assert deliver_due(engine, settings) == 0  # not due yet
    make_due(engine)
    deliver_due(engine, settings)
    make_due(engine)
    deliver_due(engine, settings)
    entry = log_of(engine)[0]
    assert entry["status"] == "delivered"
    assert [attempt["status"] for attempt in entry["attempts"]] == [500, 302, 204]
    bodies = {body for _headers, body in receiver.received}
    assert len(bodies) == 1
    assert {headers["x-ddp-audit-delivery"] for headers, _body in receiver.received} == {str(entry["id"])}


def test_waits_grow_and_end(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    end_run(engine, settings.runs_dir)
    receiver.answers = [503] * 20
    waits = []
    for _ in range(len(webhook.WAITS_SECONDS) + 1):
        make_due(engine)
        assert deliver_due(engine, settings) == 1
        with read_session(engine) as session:
            waits.append((session.exec(select(col(Delivery.next_at))).one() - now()).total_seconds())
    assert all(abs(wait - planned) < 5 for wait, planned in zip(waits, webhook.WAITS_SECONDS, strict=False))
    assert log_of(engine)[0]["status"] == "failed"
    make_due(engine)
    assert deliver_due(engine, settings) == 0


def test_dead_receiver_is_noted(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    end_run(engine, settings.runs_dir)
    nowhere = settings.model_copy(update={"webhook_url": SecretStr("http://127.0.0.1:9/hook?key=k")})
    deliver_due(engine, nowhere)
    attempt = log_of(engine)[0]["attempts"][0]
    assert (attempt["status"], attempt["error"]) == (None, "no answer: ConnectError")
    assert receiver.received == []


def test_log_never_holds_the_address(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    end_run(engine, settings.runs_dir)
    receiver.answers = [500]
    deliver_due(engine, settings)
    assert "in-the-address" not in to_json(log_of(engine)).decode()
    assert SECRET not in to_json(log_of(engine)).decode()
    assert "in-the-address" not in repr(settings)


def test_sender_that_dies_loses_nothing(
    engine: Engine, settings: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_run(engine, settings.runs_dir)
    with monkeypatch.context() as patched:
        patched.setattr(webhook, "_send", lambda *_args: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            deliver_due(engine, settings)
    assert deliver_due(engine, settings) == 0  # the dead sender's claim still holds
    make_due(engine)  # its time passes
    assert deliver_due(engine, settings) == 1
    assert len(receiver.received) == 1


def test_two_dispatchers_send_once(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    for _ in range(5):
        end_run(engine, settings.runs_dir)
    threads = [Dispatcher(engine, settings, every=0.01) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: all(item["status"] == "delivered" for item in log_of(engine)), "every delivery")
    for thread in threads:
        thread.stop()
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(headers["x-ddp-audit-delivery"] for headers, _body in receiver.received) == list("12345")


def test_deleted_run_is_still_told(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    run_id = end_run(engine, settings.runs_dir)
    delete_run(engine, settings, run_id, actor="user")
    deliver_due(engine, settings)
    assert json.loads(receiver.received[0][1])["run"]["id"] == run_id


def test_without_address_nothing_piles_up(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    end_run(engine, settings.runs_dir)
    silent = settings.model_copy(update={"webhook_url": None})
    assert deliver_due(engine, silent) == 0
    assert [item["status"] for item in log_of(engine)] == ["skipped"]
    assert deliver_due(engine, settings) == 0  # an address set later is not notified of the past
    assert receiver.received == []


def test_redelivery_sends_again(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    end_run(engine, settings.runs_dir)
    deliver_due(engine, settings)
    again = redeliver(engine, log_of(engine)[0]["id"], actor="operator")
    assert again["status"] == "pending"
    assert deliver_due(engine, settings) == 1
    assert len(receiver.received) == 2
    assert [attempt["number"] for attempt in log_of(engine)[0]["attempts"]] == [1, 2]
    with pytest.raises(NotFound):
        redeliver(engine, 99, actor="operator")


def test_address_without_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="DDP_AUDIT_WEBHOOK_SECRET") as caught:
        Settings(data_dir=tmp_path, webhook_url="https://h/?key=in-the-address", token="hidden-token")
    assert "in-the-address" not in str(caught.value)
    assert "hidden-token" not in str(caught.value)
    with pytest.raises(ValueError, match="must begin with"):
        Settings(data_dir=tmp_path, webhook_url="file:///etc/passwd", webhook_secret="s")
