"""A run whose rank, agent or supervisor dies: ended within seconds, the cause named, nothing left behind."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.host import processes
from app.runs.models import Run
from tests.support.worker_lab import Lab, open_lab

pytestmark = pytest.mark.torchrun

LONG: dict[str, Any] = {"steps": 2000, "step_seconds": 0.05, "meeting": "files"}
WITHIN = 15.0
"""Seconds from the death to the final state."""


BY_THEMSELVES: dict[str, dict[str, Any]] = {
    "raise-0": {**LONG, "acts": {"0": "raise"}},
    "raise-1": {**LONG, "acts": {"1": "raise"}},
    "exit:3": {**LONG, "acts": {"1": "exit:3"}},
    "exit:0": {**LONG, "acts": {"1": "exit:0"}},
    "return": {**LONG, "acts": {"1": "return"}},
    "unresolvable": {"launch": {"endpoint": "no-such-host.invalid:29500"}},
}
"""Runs that need no intervention; all are queued at once, so that their waits overlap."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("ranks"), max_cpu_runs=3) as lab:
        lab.worker()
        yield lab


@pytest.fixture(scope="module")
def queued(lab: Lab) -> dict[str, int]:
    return {name: lab.submit(**given) for name, given in BY_THEMSELVES.items()}


def seconds_to_end(lab: Lab, run: Run, rank: int | None = None) -> float:
    """Return the time from the death of `rank` (None: from the newest event) to the run's final state."""
    assert run.finished_at is not None
    seen = [row.last_seen.timestamp() for row in lab.ranks(run.id or 0) if row.last_seen and rank in {None, row.rank}]
    return run.finished_at.timestamp() - max(seen)


def failed(lab: Lab, run_id: int, reason: str) -> dict[str, Any]:
    """Wait for the end and return the failure."""
    run = lab.finished(run_id)
    assert (run.state, run.reason, run.verdict) == ("failed", reason, None), run.diagnosis
    assert run.failure is not None
    assert not lab.processes(run_id)
    lab.assert_events_complete(run_id)
    return run.failure


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_is_named(lab: Lab, victim: int) -> None:
    run_id = lab.submit(**LONG, save_every=1)
    row = lab.rank_at_step(run_id, victim, 3)
    assert row.pid is not None
    os.kill(row.pid, signal.SIGKILL)
    killed_at = time.time()
    failure = failed(lab, run_id, "rank_signal")
    run = lab.run(run_id)
    assert run.finished_at is not None
    assert run.finished_at.timestamp() - killed_at < WITHIN
    assert (failure["rank"], failure["signal"], failure["exit_code"], failure["phase"]) == (victim, 9, None, "train")
    assert failure["step"] >= 3
    assert failure["checkpoint"].startswith("stage-1/checkpoints/step-")
    assert f"Rank {victim} failed first" in run.diagnosis
    assert f"rank {1 - victim} was stopped by the launcher" in run.diagnosis
    assert "SIGKILL" in run.diagnosis
    assert failure["checkpoint"] in run.diagnosis


@pytest.mark.parametrize("victim", [0, 1])
def test_raising_rank_is_named(lab: Lab, queued: dict[str, int], victim: int) -> None:
    run_id = queued[f"raise-{victim}"]
    failure = failed(lab, run_id, "rank_exit")
    assert (failure["rank"], failure["exit_code"], failure["step"]) == (victim, 1, 2)
    assert failure["last_line"] == "ValueError: the weights are gone"
    assert "ValueError: the weights are gone" in lab.run(run_id).diagnosis
    assert seconds_to_end(lab, lab.run(run_id), victim) < WITHIN


def test_exit_code_and_last_words_are_told(lab: Lab, queued: dict[str, int]) -> None:
    failure = failed(lab, queued["exit:3"], "rank_exit")
    assert (failure["rank"], failure["exit_code"], failure["last_line"]) == (1, 3, "my last words")


@pytest.mark.parametrize("act", ["exit:0", "return"])
def test_early_exit_zero_is_no_success(lab: Lab, queued: dict[str, int], act: str) -> None:
    run_id = queued[act]
    failure = failed(lab, run_id, "rank_exit")
    assert (failure["rank"], failure["exit_code"], failure["step"]) == (1, 0, 2)
    assert "after it had finished 2 of 2000 steps" in lab.run(run_id).diagnosis
    assert seconds_to_end(lab, lab.run(run_id), 1) < WITHIN


def test_killed_agent_is_named(lab: Lab) -> None:
    run_id = lab.submit(**LONG)
    lab.rank_at_step(run_id, 0, 2)
    agent = lab.agent(run_id)
    os.kill(agent, signal.SIGKILL)
    failure = failed(lab, run_id, "launch_error")
    assert failure["rank"] is None
    assert f"torchrun agent (pid {agent})" in lab.run(run_id).diagnosis
    assert "SIGKILL" in lab.run(run_id).diagnosis


def test_killed_supervisor_loses_the_run(lab: Lab) -> None:
    run_id = lab.submit(**LONG)
    lab.rank_at_step(run_id, 1, 2)
    os.kill(lab.shim(run_id), signal.SIGKILL)
    run = lab.finished(run_id)
    assert (run.state, run.reason) == ("lost", "worker_lost")
    assert not lab.processes(run_id)
    assert "supervisor" in run.diagnosis
    assert "none is left" in run.diagnosis
    lab.assert_events_complete(run_id)


def test_stopped_agent_lies_about_nothing(lab: Lab) -> None:
    run_id = lab.submit(steps=40, step_seconds=0.1, meeting="files")
    lab.rank_at_step(run_id, 0, 2)
    os.kill(lab.agent(run_id), signal.SIGSTOP)
    run = lab.finished(run_id)
    assert (run.state, run.verdict) == ("succeeded", "pass")
    assert all(row.exit_code == 0 for row in lab.ranks(run_id))
    assert not lab.processes(run_id)


def test_stopped_supervisor_is_continued(lab: Lab) -> None:
    run_id = lab.submit(launcher="python", steps=20, step_seconds=0.1)
    lab.rank_at_step(run_id, 0, 2)
    shim = lab.shim(run_id)
    os.kill(shim, signal.SIGSTOP)
    lab.until(lambda: (found := processes.stat(shim)) is None or found.state not in "Tt", "the supervisor to continue")
    assert lab.finished(run_id).state == "succeeded"


def test_port_in_use_is_a_launch_error(lab: Lab) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        run_id = lab.submit(launch={"endpoint": f"127.0.0.1:{port}"})
        failure = failed(lab, run_id, "launch_error")
    assert failure["rank"] is None
    assert str(port) in lab.run(run_id).diagnosis
    assert "in use" in lab.run(run_id).diagnosis


def test_unresolvable_host_is_a_launch_error(lab: Lab, queued: dict[str, int]) -> None:
    run_id = queued["unresolvable"]
    failed(lab, run_id, "launch_error")
    assert "no-such-host.invalid" in lab.run(run_id).diagnosis


def test_out_of_memory_needs_evidence(lab: Lab) -> None:
    run_id = lab.submit(launcher="python", acts={"0": "oom"})
    failure = failed(lab, run_id, "out_of_memory")
    assert "CUDA out of memory" in failure["last_line"]
    bare = lab.submit(launcher="python", acts={"0": "signal:9"})
    assert failed(lab, bare, "rank_signal")["signal"] == 9


def test_full_disk_is_told(lab: Lab) -> None:
    run_id = lab.submit(launcher="python", acts={"0": "full"})
    failure = failed(lab, run_id, "disk_full")
    assert "No space left on device" in failure["last_line"]
    assert "Free some space" in lab.run(run_id).diagnosis
    assert lab.finished(lab.submit(launcher="python")).state == "succeeded"


def test_log_flood_fails_no_run(lab: Lab) -> None:
    run_id = lab.submit(launcher="python", acts={"0": "flood"})
    assert lab.finished(run_id).state == "succeeded"
    assert lab.paths(run_id).attempt("stage-1", 1).log(0, "stdout").stat().st_size >= 100 * 1024 * 1024
    lab.assert_events_complete(run_id)


def test_odd_lines_are_kept_aside(lab: Lab) -> None:
    run_id = lab.submit(launcher="python", acts={"0": "garbage"})
    assert lab.finished(run_id).state == "succeeded"
    assert [line.why.split(":")[0] for line in lab.malformed(run_id)] == ["not JSON", "not JSON", "not a JSON object"]
    assert any('"a":"NaN","b":null' in event.line for event in lab.events(run_id))
    torn = lab.submit(launcher="python", acts={"0": "tear"})
    failed(lab, torn, "rank_exit")
    [tail] = lab.malformed(torn)
    assert tail.text == '{"seq":9,"t":1,"type":"mess'
    assert "incomplete last line" in tail.why


@pytest.mark.parametrize(
    ("result", "said"), [("missing", "no such file"), ("invalid", "kind"), ("other_kind", "token")]
)
def test_bad_result_fails_the_run(lab: Lab, result: str, said: str) -> None:
    run_id = lab.submit(launcher="python", result=result)
    failed(lab, run_id, "invalid_result")
    assert "result.json" in lab.run(run_id).diagnosis
    assert said in lab.run(run_id).diagnosis


@pytest.mark.parametrize("target", ["shim", "rank"])
def test_term_from_outside_is_preemption(lab: Lab, target: str) -> None:
    run_id = lab.submit(launcher="python", acts={"0": "obey"}, steps=2000, step_seconds=0.05, save_every=1)
    row = lab.rank_at_step(run_id, 0, 2)
    assert row.pid is not None
    os.kill(lab.shim(run_id) if target == "shim" else row.pid, signal.SIGTERM)
    failure = failed(lab, run_id, "preempted")
    assert failure["checkpoint"].startswith("stage-1/checkpoints/step-")
    assert "retry with resume" in lab.run(run_id).diagnosis


def test_failed_audit_is_a_succeeded_run(lab: Lab) -> None:
    run = lab.finished(lab.submit(launcher="python", result="fail"))
    assert (run.state, run.reason, run.verdict, run.failure) == ("succeeded", "completed", "fail", None)


def test_secrets_never_reach_a_job(lab: Lab, tmp_path: Path) -> None:
    with open_lab(tmp_path) as other:
        other.worker(DDP_AUDIT_TOKEN="word-of-operator", DDP_AUDIT_VIEWER_TOKEN="word-of-viewer")
        run_id = other.submit(launcher="python", steps=200, step_seconds=0.05)
        pid = other.rank_at_step(run_id, 0, 1).pid
        assert pid is not None
        environment = processes.environment_of(pid)
        assert environment["DDP_AUDIT_MARKER"].endswith(f":{run_id}:stage-1:1")
        assert not any("word-of-" in value for value in environment.values())
