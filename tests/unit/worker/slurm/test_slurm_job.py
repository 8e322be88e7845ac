"""The job of an attempt: name, arguments of sbatch, script, environment, the srun command, and the nodes' commands."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.clock import now
from app.runs.models import Run
from app.settings import Settings
from trainer.contract.kinds import StagePlan
from worker.executors.slurm import head
from worker.executors.slurm.commands import client_environment
from worker.executors.slurm.node import cpu_warning, node_argv
from worker.executors.slurm.script import Defaults, job_name, job_script, node_plan, sbatch_arguments
from worker.plan import AttemptPlan, plan_attempt

DATABASE = "0123456789abcdef0123456789abcdef"


def plan(data_dir: Path, ranks: int = 4, *, launcher: str = "torchrun", **launch: Any) -> AttemptPlan:
    run = Run(id=3, kind="resume", params={"world_size": ranks}, launch=launch, device="cpu", created_at=now())
    stage = StagePlan(name="train", title="", entry="m:f", launcher=launcher)  # type: ignore[arg-type]
    return plan_attempt(run, stage, 2, Settings(data_dir=data_dir), DATABASE)


def test_name_carries_run_stage_and_attempt(tmp_path: Path) -> None:
    assert job_name(plan(tmp_path)) == "ddp-audit.3.train.2.0123456789ab"


@pytest.mark.parametrize(
    ("ranks", "launch", "nodes", "cpus"),
    [
        (4, {"nodes": 2, "ranks_per_node": 2, "cpus_per_rank": 2}, 2, 4),
        (4, {"nodes": 2}, 2, 2),
        (4, {"ranks_per_node": 1}, 4, 1),
        (8, {"nodes": 4, "cpus_per_rank": 3}, 4, 6),
        (64, {"nodes": 8}, 8, 8),
        (2, {}, 1, 2),
    ],
)
def test_step_gets_the_cpus_of_all_its_ranks(
    tmp_path: Path, ranks: int, launch: dict[str, Any], nodes: int, cpus: int
) -> None:
    made = plan(tmp_path, ranks, **launch)
    arguments = sbatch_arguments(made, Defaults())
    assert {f"--nodes={nodes}", f"--ntasks={nodes}", f"--cpus-per-task={cpus}"} <= set(arguments)
    document = node_plan(made, Defaults())
    assert (document["nodes"], document["ranks"], document["cpus"]) == (nodes, ranks // nodes, cpus)
    allocated = {"SLURM_JOB_CPUS_PER_NODE": f"{cpus}(x{nodes})"}
    srun = head.step_argv(document, allocated, ["D"])
    assert f"--cpus-per-task={cpus}" in srun  # srun does not inherit it
    assert made.command[made.command.index("--nproc") + 1] == str(ranks // nodes)
    assert ("--nnodes" in made.command) == (nodes > 1)


def test_single_process_takes_one_node(tmp_path: Path) -> None:
    made = plan(tmp_path, 4, launcher="python", nodes=2, cpus_per_rank=2)
    assert {"--nodes=1", "--ntasks=1", "--cpus-per-task=2"} <= set(sbatch_arguments(made, Defaults()))


def test_operator_sets_defaults_and_the_request_wins(tmp_path: Path) -> None:
    defaults = Defaults(partition="usual", account="ours", time_limit="30", arguments=("--qos=low",))
    usual = sbatch_arguments(plan(tmp_path), defaults)
    assert {"--partition=usual", "--account=ours", "--time=30", "--qos=low"} <= set(usual)
    assert not [word for word in usual if word.startswith("--gres")]
    asked = sbatch_arguments(plan(tmp_path, partition="gpu", account="lab", time_limit=5, gres="gpu:2"), defaults)
    assert {"--partition=gpu", "--account=lab", "--time=5", "--gres=gpu:2"} <= set(asked)
    assert not [word for word in sbatch_arguments(plan(tmp_path), Defaults()) if word.startswith("--partition")]


def test_script_survives_any_path_and_runs_the_set_up_first(tmp_path: Path) -> None:
    folder = tmp_path / "it's a %j $HOME folder"
    folder.mkdir()
    seen = tmp_path / "seen"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$PREPARED" "$DDP_AUDIT_MARKER" "$@" > {shlex.quote(str(seen))}\n')
    python.chmod(0o755)
    made = plan(folder)
    script = job_script(
        made, Defaults(setup="export PREPARED='by the operator'\n", interpreter=str(python), python=("elsewhere",))
    )
    subprocess.run(["bash"], input=script, text=True, check=True, cwd=tmp_path)
    assert seen.read_text().splitlines() == [
        *("by the operator", made.marker, "-m", "worker.executors.slurm.head", str(made.paths.root))
    ]
    output = next(word for word in sbatch_arguments(made, Defaults()) if word.startswith("--output="))
    assert "%%j" in output


def test_set_up_lines_are_the_operators(tmp_path: Path) -> None:
    setup = tmp_path / "setup.sh"
    setup.write_text("module load cuda\n")
    settings = Settings(data_dir=tmp_path, slurm_setup=setup, slurm_python="apptainer exec 'my image.sif' python3")
    defaults = Defaults.of(settings)
    assert (defaults.setup, defaults.python[2]) == ("module load cuda\n", "my image.sif")
    with pytest.raises(OSError, match=r"gone\.sh"):
        Defaults.of(settings.model_copy(update={"slurm_setup": tmp_path / "gone.sh"}))


def test_nothing_of_a_surrounding_job_reaches_a_submission() -> None:
    inherited = {
        "SLURM_JOB_ID": "77",
        "SLURM_CPUS_PER_TASK": "1",
        "SRUN_CPUS_PER_TASK": "3",
        "SBATCH_PARTITION": "x",
        "RANK": "3",
        "MASTER_PORT": "1",
        "OMPI_COMM_WORLD_RANK": "2",
        "DDP_AUDIT_TOKEN": "secret",
    }
    kept = {"SLURM_CONF": "/etc/slurm/slurm.conf", "HOME": "/somewhere", "PATH": "/bin", "DDP_AUDIT_STALL_SECONDS": "9"}
    environment = client_environment({**inherited, **kept})
    assert not inherited.keys() & environment.keys()
    assert kept.items() <= environment.items()
    assert head.step_environment({"SRUN_CPUS_PER_TASK": "3", "SLURM_JOB_ID": "5"}) == {"SLURM_JOB_ID": "5"}


def test_step_asks_for_no_more_than_was_allocated(tmp_path: Path) -> None:
    document = node_plan(plan(tmp_path, 4, nodes=2, cpus_per_rank=2), Defaults())
    srun = head.step_argv(document, {"SLURM_JOB_CPUS_PER_NODE": "4,2"}, [])
    assert "--cpus-per-task=2" in srun


def test_too_few_cpus_are_said_with_both_numbers() -> None:
    assert cpu_warning({"SLURM_CPUS_ON_NODE": "4"}, 2, 4, 2) == ""
    said = cpu_warning({"SLURM_CPUS_ON_NODE": "1", "SLURMD_NODENAME": "n1"}, 64, 4, 2)
    assert said.startswith("n1 has 1 CPUs for 2 ranks that need 4")
    assert "has 3 CPUs" in cpu_warning({}, 3, 4, 2)


def test_port_in_use_is_not_taken() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen(1)
        port = int(taken.getsockname()[1])
        assert head.free_port(port) != port
    assert head.free_port(port) == port
    assert {head.candidate(job) for job in range(3 * head.PORTS)} <= set(range(20_000, 30_000))


def test_nodes_know_their_place(tmp_path: Path) -> None:
    document = json.loads(json.dumps(node_plan(plan(tmp_path, nodes=2), Defaults())))
    group = {"hosts": ["a", "b"], "addresses": {"a": "10.0.0.1", "b": "b"}, "endpoint": "10.0.0.1:20001"}
    argv = node_argv(document, group, 1, "b")
    launch = argv[argv.index("trainer.launch") + 1 : argv.index("--")]
    options = dict(zip(launch[::2], launch[1::2], strict=True))
    assert options["--node"] == "1"
    assert (options["--endpoint"], options["--local-addr"]) == ("10.0.0.1:20001", "b")
    assert (options["--nnodes"], options["--nproc"]) == ("2", "2")
    alone = node_argv(node_plan(plan(tmp_path, 2), Defaults()), {"hosts": ["a"], "endpoint": ""}, 0, "a")
    assert "--endpoint" not in alone
