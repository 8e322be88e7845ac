"""The plan of an attempt: pure, printable, and without secrets."""

import json
import shlex
from pathlib import Path
from typing import Any

from app.clock import now
from app.runs.models import Run
from app.settings import Settings
from trainer.contract.kinds import StagePlan
from worker.plan import plan_attempt


def run(**known: Any) -> Run:
    facts: dict[str, Any] = {"id": 7, "kind": "x", "params": {"world_size": 3}, "created_at": now(), "device": "cpu"}
    return Run(**{**facts, **known})


def stage(launcher: str = "torchrun") -> StagePlan:
    return StagePlan(name="train", title="T", entry="a.b:c", launcher=launcher, arguments={"mode": "a b"})  # type: ignore[arg-type]


def test_ranks_go_through_the_launcher(tmp_path: Path) -> None:
    plan = plan_attempt(run(), stage(), 2, Settings(data_dir=tmp_path), "db")
    split = plan.command.index("--")
    assert plan.command[:2] == ("-m", "trainer.launch")
    assert plan.command[split - 2 : split] == ("--nproc", "3")
    entry = plan.command[split + 1 :]
    assert entry[entry.index("--attempt") + 1] == "2"
    assert json.loads(entry[entry.index("--arguments") + 1]) == {"mode": "a b"}
    assert plan.marker == "db:7:train:2"
    assert plan.environment["DDP_AUDIT_MARKER"] == plan.marker
    assert plan.paths.root == tmp_path / "runs" / "7" / "train" / "attempt_2"


def test_single_process_needs_no_launcher(tmp_path: Path) -> None:
    plan = plan_attempt(run(), stage("python"), 1, Settings(data_dir=tmp_path), "db")
    assert plan.command[:2] == ("-m", "trainer.entry")
    assert plan.ranks == 1
    assert "--nproc" not in plan.command


def test_same_input_gives_same_plan(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert plan_attempt(run(), stage(), 1, settings, "db") == plan_attempt(run(), stage(), 1, settings, "db")
    assert not (tmp_path / "runs").exists()


def test_shell_text_reads_back(tmp_path: Path) -> None:
    plan = plan_attempt(run(), stage(), 1, Settings(data_dir=tmp_path), "db")
    words = shlex.split(plan.shell())
    assert words[:3] == ["cd", str(plan.cwd), "&&"]
    assert tuple(words[-len(plan.command) - 1 :]) == ("python", *plan.command)


def test_cpu_run_sees_no_gpu(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert plan_attempt(run(), stage(), 1, settings, "db").environment["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in plan_attempt(run(device="cuda"), stage(), 1, settings, "db").environment


def test_endpoint_of_launch_is_passed_on(tmp_path: Path) -> None:
    plan = plan_attempt(run(launch={"endpoint": "h:1"}), stage(), 1, Settings(data_dir=tmp_path), "db")
    assert plan.command[plan.command.index("--endpoint") + 1] == "h:1"
