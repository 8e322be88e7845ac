"""Choice of the model: the newest passing cifar run, or the named run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.clock import now
from app.db import create_database_engine, write_session
from app.inference.choose import Chooser, ChosenModel, model_of_run, model_path, newest_model
from app.inference.errors import ModelRefused
from app.runs.models import Run
from app.schema import migrate
from app.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    return settings


@pytest.fixture
def engine(settings: Settings) -> Any:
    engine = create_database_engine(settings)
    yield engine
    engine.dispose()


def add(engine: Engine, runs_dir: Path, *, mode: str = "no_sync", model: bool = True, **fields: Any) -> int:
    row = {"kind": "cifar", "state": "succeeded", "verdict": "pass", **fields}
    with write_session(engine) as session:
        run = Run(params={"mode": mode}, created_at=now(), **row)
        session.add(run)
        session.flush()
        number = int(run.id or 0)
    if model:
        path = model_path(runs_dir, number, "cifar", {"mode": mode})
        path.parent.mkdir(parents=True)
        path.write_bytes(b"model")
    return number


def test_newest_passing_run_answers(engine: Engine, settings: Settings) -> None:
    add(engine, settings.runs_dir)
    wanted = add(engine, settings.runs_dir, mode="both")
    for others in (
        {"verdict": "fail"},
        {"verdict": "inconclusive"},
        {"state": "running", "verdict": None},
        {"kind": "resume"},
        {"deleting": True},
        {"model": False},
    ):
        add(engine, settings.runs_dir, **others)
    chosen = newest_model(engine, settings.runs_dir)
    assert chosen.run_id == wanted
    assert chosen.path == settings.runs_dir / str(wanted) / "artifacts" / "no_sync" / "model.pt"
    assert newest_model(engine, settings.runs_dir).run_id < add(engine, settings.runs_dir)
    assert newest_model(engine, settings.runs_dir).run_id > wanted


@pytest.mark.parametrize(("mode", "folder"), [("both", "no_sync"), ("every", "every"), ("no_sync", "no_sync")])
def test_mode_that_answers(engine: Engine, settings: Settings, mode: str, folder: str) -> None:
    number = add(engine, settings.runs_dir, mode=mode, verdict="fail")
    assert model_of_run(engine, settings.runs_dir, number).path.parent.name == folder


@pytest.mark.parametrize("number", [0, -1, 17, 2**63 - 1, 2**63, 10**30])
def test_unknown_run_is_not_found(engine: Engine, settings: Settings, number: int) -> None:
    with pytest.raises(ModelRefused, match=f"no run {number}") as refusal:
        model_of_run(engine, settings.runs_dir, number)
    assert refusal.value.status == 404


def test_choice_is_remembered_until_a_write(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[int | None] = []
    query = Chooser._query

    def counted(self: Chooser, run_id: int | None) -> ChosenModel:
        queries.append(run_id)
        return query(self, run_id)

    async def scenario() -> None:
        chooser = Chooser(engine, settings.runs_dir)
        first = add(engine, settings.runs_dir)
        assert [(await chooser.choose(None)).run_id for _ in range(5)] == [first] * 5
        assert (await chooser.choose(first)).run_id == first
        assert queries == [None, first]
        second = add(engine, settings.runs_dir)
        assert [(await chooser.choose(None)).run_id for _ in range(5)] == [second] * 5
        assert queries == [None, first, None]
        (await chooser.choose(None)).path.unlink()
        assert (await chooser.choose(None)).run_id == first
        with pytest.raises(ModelRefused):
            await chooser.choose(17)
        chooser.close()

    monkeypatch.setattr(Chooser, "_query", counted)
    asyncio.run(scenario())


def test_without_models_says_how(engine: Engine, settings: Settings) -> None:
    add(engine, settings.runs_dir, model=False)
    with pytest.raises(ModelRefused, match="ddp-audit run cifar"):
        newest_model(engine, settings.runs_dir)
