"""Text, numbers and times come back as they were stored, on both databases: last words may contain any character."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Engine, Integer, String
from sqlmodel import SQLModel, col, select

from app.database.columns import LongWords, UtcDateTime, Words, escaped, unescaped
from app.db import create_database_engine, read_session, write_session
from app.runs import queue
from app.runs.derived import Delivery
from app.runs.editing import edit_run, read_changes
from app.runs.models import MalformedLine, RankRow, Run, RunEvent, StageAttempt
from app.runs.states import Reason, State
from app.runs.store import RunFilters, list_runs
from app.schema import migrate
from app.settings import Settings
from tests.support.active import ME, running
from tests.support.postgres import Server
from trainer.contract.paths import RunPaths
from worker import records
from worker.facts import Facts
from worker.intake import Intake
from worker.outcome import Outcome, failure_document

ODD = ["\0", "a\0b", "\x1a", "\x1a0", "\x1a1\0", "%_\\", "ü💼\ufffe\U0010ffff", "\x01\x7f\r\n\t", ""]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Engine]:
    url = server.url(server.fresh()) if request.param == "postgres" else f"sqlite:///{tmp_path}/own.db"
    made = Settings(data_dir=tmp_path, database_url=url)
    migrate(made)
    engine = create_database_engine(made)
    yield engine
    engine.dispose()


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])) | st.text(alphabet="\0\x1a01a"))
def test_escaping_is_undone(text: str) -> None:
    stored = escaped(text)
    assert stored is not None
    assert "\0" not in stored
    assert unescaped(stored) == text


@trying(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(texts=st.lists(st.text(alphabet="\0\x1a01a%_'\"\\ü") | st.sampled_from(ODD), min_size=1, unique=True))
def test_texts_and_documents_survive(database: Engine, texts: list[str]) -> None:
    params = {"list": texts, "nested": {text: text for text in texts}, "big": 2**53, "small": 5e-324}
    with write_session(database) as session:
        ids = [queue.number_of(queue.insert_run(session, kind="k", name=text, params=params)) for text in texts]
    with read_session(database) as session:
        rows = [session.get_one(Run, number) for number in ids]
        assert [row.name for row in rows] == texts
        assert all(row.params == params for row in rows)
        found = session.exec(select(Run.id).where(Run.name == texts[0], col(Run.id).in_(ids))).all()
        assert found == ids[:1]


def test_order_is_that_of_python(database: Engine) -> None:
    names = ["b", "B", "a", "Ä", "ä", "-a", "Z", "_", "💼", "10", "9"]
    with write_session(database) as session:
        for name in names:
            queue.insert_run(session, kind="k", name=name, params={})
    with read_session(database) as session:
        assert list(session.exec(select(Run.name).order_by(Run.name))) == sorted(names)


def test_search_takes_signs_as_they_are(database: Engine) -> None:
    with write_session(database) as session:
        for name in ("100%", "100x", "a_b", "axb", "Back\\slash"):
            queue.insert_run(session, kind="k", name=name, params={})

    def found(words: str) -> list[str]:
        with read_session(database) as session:
            return sorted(item.name for item in list_runs(session, RunFilters(q=words)).items)

    assert found("0%") == ["100%"]
    assert found("A_B") == ["a_b"]
    assert found("back\\s") == ["Back\\slash"]
    assert found("a\0") == []


def test_last_words_with_nul_end_the_run(database: Engine, tmp_path: Path) -> None:
    run_id = running(database)
    with write_session(database) as session:
        session.add(StageAttempt(run_id=run_id, stage="train", attempt=1, position=0, state="running"))
    paths = RunPaths(tmp_path / str(run_id)).attempt("train", 1)
    paths.root.mkdir(parents=True)
    paths.events(0).write_bytes(
        b'{"seq": 0, "t": 1, "type": "message", "level": "info", "text": "a\\u0000b"}\n'
        b'{"seq": 1, "t": 1, "type": "metrics", "step": 1, "values": {"k\\u0000": 1.5}}\n'
        b'{"seq": 2, "t": 1, "type": "phase", "phase": "p\\u0000", "step": 9007199254740992}\nmalformed \0 words\n'
    )
    intake = Intake(database, run_id=run_id, worker_id=ME.id, stage="train", attempt=1, paths=paths)
    while intake.pull(final=True):
        pass
    words = "segmentation fault\0core dumped"
    outcome = Outcome(
        state=State.FAILED, reason=Reason.RANK_SIGNAL, failure=failure_document(last_line=words), diagnosis=words
    )
    records.finish(database, run_id, ME, outcome, Facts(stage="train"), attempt=records.NOT_STARTED)
    with read_session(database) as session:
        run = session.get_one(Run, run_id)
        assert (run.state, run.diagnosis, run.failure and run.failure["last_line"]) == ("failed", words, words)
        assert session.exec(select(MalformedLine.text)).one() == "malformed \0 words"
        rank = session.exec(select(RankRow)).one()
        assert (rank.phase, rank.step, rank.events) == ("p\0", 2**53, 3)
        assert '"a\\u0000b"' in session.exec(select(RunEvent.line).where(RunEvent.id == 1)).one()
        assert session.exec(select(Delivery.run)).one()["state"] == "failed"


def test_times_and_large_numbers_survive(database: Engine) -> None:
    moment = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    with write_session(database) as session:
        run = queue.insert_run(session, kind="k", params={}, created_at=moment, next_event_id=2**62, id=2**40)
        assert run.id == 2**40
    with read_session(database) as session:
        kept = session.get_one(Run, 2**40)
        assert (kept.created_at, kept.created_at.tzinfo, kept.next_event_id) == (moment, UTC, 2**62)
        assert session.exec(select(Run.id).where(Run.created_at == moment)).one() == 2**40


def test_audit_of_a_strange_name(database: Engine) -> None:
    run_id = running(database)
    assert edit_run(database, run_id, read_changes({"notes": "a\nb\tc"}), actor="x\0y") == ["notes"]


def test_every_column_is_the_same_everywhere() -> None:
    columns = [column for table in SQLModel.metadata.tables.values() for column in table.columns]
    assert len(columns) > 100
    for column in columns:
        if isinstance(column.type, Integer) and not isinstance(column.type, BigInteger):
            pytest.fail(f"{column} has 32 bits on PostgreSQL")
        if isinstance(column.type, String) or "AutoString" in repr(column.type):
            pytest.fail(f"{column} cannot hold every text")
    assert {type(column.type) for column in columns} >= {Words, LongWords, UtcDateTime, BigInteger}
