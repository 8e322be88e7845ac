"""One attempt as a job: submitted once whatever happens, followed, cancelled until it ends, found again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.clock import now
from app.runs.models import Run
from app.settings import Settings
from trainer.contract.kinds import StagePlan
from worker.executors.base import Fate, Phase
from worker.executors.slurm.commands import Answer, Programs, Unavailable
from worker.executors.slurm.handle import SlurmHandle
from worker.executors.slurm.listing import SlurmJob
from worker.executors.slurm.orders import read_orders
from worker.executors.slurm.script import Defaults, job_name
from worker.plan import AttemptPlan, plan_attempt


class Slurm(Programs):
    """Slurm's programs, played: it accepts jobs, and loses answers on demand."""

    def __init__(self) -> None:
        self.queue: list[SlurmJob] = []
        self.cancelled: list[tuple[int, tuple[str, ...]]] = []
        self.answers_lost = 0
        self.refusal = ""

    def submit(self, arguments: Sequence[str]) -> Answer:
        """Accept a job."""
        if self.refusal:
            return Answer(1, "", self.refusal)
        name = next(word.partition("=")[2] for word in arguments if word.startswith("--job-name="))
        self.queue.append(SlurmJob(id=len(self.queue) + 1, state="PENDING", name=name))
        if self.answers_lost:
            self.answers_lost -= 1
            raise Unavailable("sbatch did not end")
        return Answer(0, f"{len(self.queue)}\n", "")

    def cancel(self, job_id: int, *options: str) -> None:
        """Note the call."""
        self.cancelled.append((job_id, options))

    def accounting(self, job_id: int) -> str:  # noqa: ARG002  # there is none
        """Return nothing."""
        return ""

    def become(self, state: str, **known: Any) -> list[SlurmJob]:
        """Put the newest job into a state."""
        self.queue[-1] = SlurmJob(id=self.queue[-1].id, name=self.queue[-1].name, state=state, **known)
        return self.queue


@pytest.fixture
def plan(tmp_path: Path) -> AttemptPlan:
    run = Run(id=3, kind="resume", params={"world_size": 2}, launch={"nodes": 2}, device="cpu", created_at=now())
    stage = StagePlan(name="train", title="", entry="m:f", launcher="torchrun")
    made = plan_attempt(run, stage, 1, Settings(data_dir=tmp_path), "d" * 32)
    made.cwd.mkdir(parents=True)
    return made


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


def started(plan: AttemptPlan, slurm: Slurm) -> SlurmHandle:
    return SlurmHandle(plan, slurm, hurry=lambda: None, defaults=Defaults())


def found(plan: AttemptPlan, slurm: Slurm, job_id: int | None = None) -> SlurmHandle:
    return SlurmHandle(plan, slurm, hurry=lambda: None, job_id=job_id)


def report(plan: AttemptPlan, number: int, code: int = 0) -> None:
    stop = {"cause": None, "asked": False, "killed_at": None, "processes_ended": 0, "processes_left": 0}
    entry = {"rank": number, "local_rank": 0, "pid": 1, "exit_code": code, "signal": None, "died_at": 1.0}
    document = {
        "started_at": 0.0,
        "finished_at": 2.0,
        "ranks": [entry],
        "first": {"rank": number, "at": 1.0},
        "main": {"pid": 1, "exit_code": code, "signal": None, "ended_at": 1.0},
        "stop": stop,
        "launch_error": None,
        "oom_kills": 0,
    }
    plan.paths.node(number).exit.write_text(json.dumps(document))


def test_lost_answer_of_sbatch_is_no_second_job(plan: AttemptPlan, slurm: Slurm) -> None:
    handle = started(plan, slurm)
    slurm.answers_lost = 1
    with pytest.raises(Unavailable):
        handle.follow(slurm.queue)
    handle.unreachable("sbatch did not end")
    assert handle.status().phase is Phase.WAITING
    handle.follow(slurm.queue)
    assert [job.id for job in slurm.queue] == [1]
    assert handle.reference() == {"job": 1, "name": job_name(plan)}


def test_answer_lost_before_slurm_took_the_job_is_repeated(plan: AttemptPlan, slurm: Slurm) -> None:
    handle = started(plan, slurm)
    handle.unreachable("no connection")
    handle.follow([])
    assert len(slurm.queue) == 1


def test_refused_job_ends_with_the_field(plan: AttemptPlan, slurm: Slurm) -> None:
    slurm.refusal = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination"
    handle = started(plan, slurm)
    handle.follow([])
    assert (handle.status().phase, handle.status().fate) == (Phase.ENDED, Fate.NOT_STARTED)
    assert "launch.account" in handle.status().why


def test_stop_before_the_submission_submits_nothing(plan: AttemptPlan, slurm: Slurm) -> None:
    handle = started(plan, slurm)
    handle.stop()
    handle.follow([])
    assert (handle.status().fate, slurm.queue) == (Fate.NOT_STARTED, [])


def test_silence_keeps_the_state_and_ends_with_it(plan: AttemptPlan, slurm: Slurm) -> None:
    handle = started(plan, slurm)
    handle.follow([])
    handle.follow(slurm.become("RUNNING", since=5.0))
    handle.unreachable("no route")
    status = handle.status()
    assert (status.phase, status.since) == (Phase.UNREACHABLE, 5.0)
    assert "no route" in status.why
    handle.follow(slurm.queue)
    assert (handle.status().phase, handle.status().why) == (Phase.RUNNING, "")


def test_ranks_that_all_ended_well_need_no_slurm(plan: AttemptPlan, slurm: Slurm) -> None:
    handle = started(plan, slurm)
    handle.follow([])
    handle.follow(slurm.become("RUNNING"))
    report(plan, 0)
    handle.look()
    assert handle.status().phase is Phase.RUNNING
    report(plan, 1)
    handle.look()
    assert (handle.status().phase, handle.status().fate) == (Phase.ENDED, Fate.REPORTED)
    assert [rank["rank"] for rank in json.loads(plan.paths.exit.read_text())["ranks"]] == [0, 1]


def test_cancel_reaches_the_nodes_and_counts_when_slurm_says_so(plan: AttemptPlan, slurm: Slurm) -> None:
    handle = started(plan, slurm)
    handle.follow([])
    handle.follow(slurm.become("RUNNING"))
    handle.stop()
    assert read_orders(plan.paths.nodes).stop
    handle.follow(slurm.queue)
    handle.follow(slurm.queue)
    assert slurm.cancelled == [(1, ())]  # not at every question
    assert handle.status().phase is Phase.RUNNING
    handle.destroy()
    handle.destroy()
    handle.follow(slurm.queue)
    assert slurm.cancelled[1:] == [(1, ("--signal=KILL", "--full")), (1, ())]
    handle.follow(slurm.become("CANCELLED"))
    assert handle.status().phase is Phase.ENDED


def test_released_handle_still_cancels_what_must_be_destroyed(plan: AttemptPlan, slurm: Slurm) -> None:
    handle = started(plan, slurm)
    handle.follow([])
    handle.destroy()
    handle.close()
    assert not handle.settled
    handle.follow(slurm.become("RUNNING"))
    assert handle.settled


def test_requeued_job_is_withdrawn(plan: AttemptPlan, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slurm, "failed_nodes", lambda *_: [])
    handle = started(plan, slurm)
    handle.follow([])
    handle.follow(slurm.become("PENDING", reason="BeginTime", restarts=1))
    assert handle.status().fate is Fate.REQUEUED
    assert slurm.cancelled == [(1, ())]


def test_next_worker_finds_the_job(plan: AttemptPlan, slurm: Slurm) -> None:
    started(plan, slurm).follow([])
    by_name = found(plan, slurm)
    by_name.follow(slurm.become("RUNNING"))
    assert (by_name.status().phase, by_name.reference()) == (Phase.RUNNING, {"job": 1, "name": job_name(plan)})
    by_number = found(plan, slurm, 1)
    by_number.follow(slurm.queue)
    assert by_number.status().phase is Phase.RUNNING


def test_attempt_that_was_never_submitted_is_absent(plan: AttemptPlan, slurm: Slurm) -> None:
    handle = found(plan, slurm)
    handle.follow([])
    assert handle.status().phase is Phase.ABSENT


def test_forgotten_job_is_judged_by_its_files(plan: AttemptPlan, slurm: Slurm) -> None:
    started(plan, slurm).follow([])
    (plan.paths.nodes / "head.json").write_text(json.dumps({"job_id": 1, "hosts": ["a", "b"]}))
    report(plan, 0, code=1)
    handle = found(plan, slurm)
    handle.follow([])
    handle.follow([])
    assert (handle.status().fate, "b left no report" in handle.status().why) == (Fate.LOST, True)
    report(plan, 1, code=1)
    again = found(plan, slurm, 1)
    again.follow([])
    assert again.status().fate is Fate.REPORTED


def test_kill_names_one_moment_for_all_nodes(plan: AttemptPlan, slurm: Slurm) -> None:
    handle = started(plan, slurm)
    handle.follow([])
    state = {"stopped": False, "cpu_seconds": 1.0, "rss_bytes": 1}
    for number in (0, 1):
        plan.paths.node(number).state.write_text(json.dumps({"ranks": {str(number): state}}))
    handle.look()
    assert handle.kill_ranks() == 2
    before = read_orders(plan.paths.nodes).kill_at
    assert before > 0
    assert found(plan, slurm, 1).kill_ranks() == 0
    assert read_orders(plan.paths.nodes).kill_at > before  # an order of an earlier worker is not repeated
