"""`ddp-audit run` as a process that executes its run itself."""

import json
import signal
from pathlib import Path

import pytest

from app.db import create_database_engine, read_session
from app.runs.models import RankRow, Run
from app.settings import Settings
from tests.support.cli import call, start
from tests.support.waiting import until


@pytest.mark.torchrun
def test_run_prints_one_document(tmp_path: Path) -> None:
    process = start("run", "token-parity", "--json", "--name", "mine", data_dir=tmp_path)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert (document["name"], document["state"], document["verdict"]) == ("mine", "succeeded", "pass")
    assert document["result"]["summary"]["components"] == 282_628
    assert "stage distributed succeeded" in err
    assert call("show", "1", "--json", data_dir=tmp_path).document["id"] == document["id"]
    shown = call("verify", "1", data_dir=tmp_path)
    assert shown.returncode == 0
    assert "PASS token-parity" in shown.stdout


@pytest.mark.torchrun
@pytest.mark.parametrize(
    ("accumulation", "variant", "said"),
    [
        (3, "rank_mean", ["diagnosis: identified: rank_mean", "Rank 0's tokens weigh", "suggestion: Divide by"]),
        (2, "missing_world_size", ["diagnosis: ambiguous: missing_world_size", "suggestion: Run with 3 micro-batches"]),
    ],
)
def test_run_names_a_planted_mistake(tmp_path: Path, accumulation: int, variant: str, said: list[str]) -> None:
    given = ("-p", f"variant={variant}", "-p", f"accumulation={accumulation}", "-p", "batch_size_per_rank=2")
    process = start("run", "token-parity", *given, data_dir=tmp_path)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 1, err
    shown = call("show", "1", data_dir=tmp_path).stdout
    for sentence in said:
        assert sentence in out
        assert sentence in shown
    found = call("result", "1", "--json", data_dir=tmp_path).document["diagnosis"]
    assert found["causes"][0]["name"] == variant
    junit = call("junit", "1", data_dir=tmp_path).stdout
    assert f": {variant}" in junit


@pytest.mark.torchrun
def test_interrupt_cancels_the_run(tmp_path: Path) -> None:
    process = start("run", "token-parity", "--preset", "full", data_dir=tmp_path)
    engine = create_database_engine(Settings(data_dir=tmp_path))
    pids = _until_ranks(engine_path=tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    with read_session(engine) as session:
        run = session.get_one(Run, 1)
        assert (run.state, run.reason) == ("cancelled", "cancelled_by_user")
    engine.dispose()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _until_ranks(engine_path: Path, seconds: float = 120) -> list[int]:
    """Return the pids of the first stage's ranks as soon as they are known."""
    engine = create_database_engine(Settings(data_dir=engine_path))

    def pids() -> list[int]:
        if not (engine_path / "runs" / "1" / "config.json").exists():
            return []
        with read_session(engine) as session:
            row = session.get(RankRow, (1, "prepare", 1, 0))
            return [] if row is None or row.pid is None else [row.pid]

    try:
        return list(until(pids, "the first rank", seconds))
    finally:
        engine.dispose()
