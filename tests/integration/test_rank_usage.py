"""Resource use of ranks is measured from outside, bounded for long runs, and shown by API and page."""

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlmodel import col, select

from app.db import create_database_engine, read_session, write_session
from app.runs import queue
from app.runs.models import RankUsage, Run
from app.runs.telemetry.resources import resources
from app.schema import migrate
from app.settings import Settings
from app.web.charts.resources import resource_panels
from tests.support.pages_data import add_run, add_usage
from tests.support.service import Service, running_service, shown
from tests.support.worker_lab import ROOT, Lab
from trainer.contract.crumb import read_crumb
from trainer.contract.paths import AttemptPaths
from worker import usage
from worker.executors.local.gpus import GpuWatch
from worker.executors.local.ranks_seen import RanksSeen
from worker.lines import Heard
from worker.marker import MARKER
from worker.plan import AttemptPlan
from worker.usage import UsageLog

HTML = {"Accept": "text/html"}


BUSY = """
import sys
from pathlib import Path
from trainer.contract.crumb import CrumbWriter
CrumbWriter(Path(sys.argv[1]))
while True: pass
"""
RANK = {0: Heard(started=True)}


def attempt(root: Path, marker: str = "mine") -> RanksSeen:
    """Return this worker's sampler of the one rank of an attempt in `root`."""
    plan = AttemptPlan(
        run_id=1,
        stage="train",
        attempt=1,
        launcher="python",
        ranks=1,
        imports="nothing",
        command=(),
        environment={},
        cwd=root,
        paths=AttemptPaths(root),
        marker=marker,
        grace_seconds=1.0,
    )
    return RanksSeen(plan, GpuWatch())


@pytest.fixture
def busy(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    crumb = AttemptPaths(tmp_path).breadcrumb(0)
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(crumb)], env={MARKER: "mine"}, cwd=ROOT)
    until = time.monotonic() + 30
    while read_crumb(crumb) is None and time.monotonic() < until:
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()


class Sampler:
    """A run in a separate database, and samples of one process as its rank 0."""

    def __init__(self, data_dir: Path) -> None:
        settings = Settings(data_dir=data_dir)
        migrate(settings)
        self.engine = create_database_engine(settings)
        with write_session(self.engine) as session:
            self.run_id = queue.number_of(queue.insert_run(session, kind="k", params={}, worker_id="me"))

    def log(self, worker_id: str = "me") -> UsageLog:
        return UsageLog(self.engine, run_id=self.run_id, worker_id=worker_id, stage="train", attempt=1)

    def rows(self) -> list[RankUsage]:
        with read_session(self.engine) as session:
            rows = list(session.exec(select(RankUsage).order_by(col(RankUsage.at))))
            session.expunge_all()
            return rows


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[Sampler]:
    made = Sampler(tmp_path)
    yield made
    made.engine.dispose()


@pytest.mark.usefixtures("busy")
def test_work_and_memory_are_measured(sampler: Sampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "SAMPLE_SECONDS", 0.5)
    log, seen = sampler.log(), attempt(tmp_path)
    until = time.monotonic() + 30
    while len(sampler.rows()) < 3 and time.monotonic() < until:
        log.tick(RANK, seen.usage)
        time.sleep(0.05)
    first, *_, last = sampler.rows()
    assert last.at - first.at >= 0.9
    assert 0 < last.cpu_seconds - first.cpu_seconds <= 1.1 * (last.at - first.at) + 0.05
    assert 1 << 20 < last.rss_bytes < 1 << 30
    assert last.gpu_bytes is None


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("marker", "worker_id"), [("other", "me"), ("mine", "somebody")])
def test_foreign_processes_leave_no_sample(sampler: Sampler, tmp_path: Path, marker: str, worker_id: str) -> None:
    sampler.log(worker_id).tick(RANK, attempt(tmp_path, marker).usage)
    assert sampler.rows() == []
    sampler.log().tick(RANK, attempt(tmp_path).usage)
    assert len(sampler.rows()) == 1


def test_ended_rank_is_not_sampled(sampler: Sampler, busy: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    seen = attempt(tmp_path)
    sampler.log().tick({0: Heard(started=True, ended=True), 1: Heard()}, seen.usage)
    assert set(seen.usage({})) == {0}
    busy.kill()
    busy.wait()
    sampler.log().tick(RANK, seen.usage)
    sampler.log().tick(RANK, attempt(tmp_path).usage)
    assert sampler.rows() == []


@pytest.mark.usefixtures("busy")
def test_long_run_stays_small(sampler: Sampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST_MOMENTS", 16)
    clock = [1000.0]
    monkeypatch.setattr("worker.usage.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("worker.usage.time.time", lambda: clock[0])
    log, seen = sampler.log(), attempt(tmp_path)
    for turn in range(1500):  # fifty minutes of turns
        if turn == 700:
            log = sampler.log()  # a worker that took over continues thinning
        clock[0] += 2.0
        log.tick(RANK, seen.usage)
    moments = [row.at for row in sampler.rows()]
    assert 8 <= len(moments) <= 16
    assert moments[0] == 1002.0
    assert moments[-1] > 3500
    work = [row.cpu_seconds for row in sampler.rows()]
    assert work == sorted(work)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


def sampled(service: Service, state: str = "succeeded", *, gpu: bool = False) -> int:
    """Record a run whose two ranks were busy in two stages, with a pause between."""
    number = add_run(service.engine, state)
    for stage, begin in (("one", 1.0), ("two", 40.0)):
        add_usage(service.engine, number, stage, begin=begin, gpu=gpu)
    return number


def test_resources_are_told_per_rank(service: Service) -> None:
    number = sampled(service)
    series = service.get(f"/runs/{number}/resources").json()["series"]
    assert [(item["stage"], item["rank"]) for item in series] == [("one", 0), ("one", 1), ("two", 0), ("two", 1)]
    assert series[0]["cpu_percent"] == [None, 75.0, 75.0, 75.0]
    assert series[3]["cpu_percent"] == [None, 125.0, 125.0, 125.0]
    assert [round(at, 1) for at in series[2]["seconds"]] == [40.0, 42.0, 44.0, 46.0]
    assert series[1]["rss_bytes"] == [101 << 20] * 4
    assert series[0]["gpu_bytes"] == [None] * 4
    assert service.get(f"/runs/{number}/events").json()["items"] == []
    assert service.get("/runs/999/resources").status_code == 404


def test_page_draws_what_was_measured(service: Service) -> None:
    number, bare = sampled(service), add_run(service.engine, "succeeded")
    text = shown(service.http, f"/runs/{number}")
    assert "CPU per rank" in text
    assert "Memory per rank" in text
    assert "GPU busy" not in text
    assert "GPU busy" in shown(service.http, f"/runs/{sampled(service, gpu=True)}")
    assert "CPU per rank" not in shown(service.http, f"/runs/{bare}")


def test_charts_are_asked_for_until_end(service: Service) -> None:
    states = {"succeeded": 286, "running": 200}
    for state, status in states.items():
        answer = service.http.get(f"/runs/{sampled(service, state)}/resources", headers=HTML)
        assert answer.status_code == status
        assert answer.text.count("<figure") == 2
    assert service.http.get(f"/runs/{2**63}/resources", headers=HTML).status_code in (404, 422)


def test_worker_samples_its_ranks(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    try:
        run_id = lab.submit(steps=140, step_seconds=0.05, launcher="python")
        lab.worker("--once")
        assert lab.finished(run_id).state == "succeeded"
        with read_session(lab.engine) as session:
            series = resources(session, lab.run(run_id))["series"]
    finally:
        lab.close()
    assert [(item["stage"], item["rank"]) for item in series] == [("stage-1", 0)]
    assert 2 <= len(series[0]["seconds"]) <= 40
    assert all(size > 1 << 20 for size in series[0]["rss_bytes"])
    assert all(0 <= share < 400 for share in series[0]["cpu_percent"][1:])


def test_pause_between_stages_is_a_gap(service: Service) -> None:
    with read_session(service.engine) as session:
        run = session.get(Run, sampled(service))
        assert run is not None
        memory = resource_panels(session, run)[1]
    line = memory.data["lines"][0]["y"]
    assert line == [None, 100, 100, 100, 100, None, 100, 100, 100, 100]
    assert not math.isnan(memory.data["lines"][0]["x"][0])
    assert len(memory.view.curves[0].pieces) == 2
