"""Started below another launcher, in an allocation or a container: its variables change neither verdict nor figures."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.environment import for_children
from tests.support.cli import COMMAND
from worker.executors.local.ranks import rank_in

FOREIGN = {
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.255.255.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_MAX_RESTARTS": "9",
    "TORCHELASTIC_RESTART_COUNT": "4",
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "8",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "77",
    "OMPI_COMM_WORLD_RANK": "5",
    "PMI_RANK": "5",
    "OMP_NUM_THREADS": "7",
    "PYTHONOPTIMIZE": "2",
}
KEPT = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "lo", "HOME": "/h"}


def ran(tmp_path: Path, name: str, environment: dict[str, str], *command: str) -> Any:
    done = subprocess.run(
        [str(COMMAND), *command, "--json"],
        env={**environment, "DDP_AUDIT_DATA_DIR": str(tmp_path / name)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.torchrun
def test_figures_are_those_of_a_bare_environment(tmp_path: Path) -> None:
    bare = {"PATH": "/usr/bin:/bin"}
    clean = ran(tmp_path, "clean", bare, "run", "token-parity")
    forked = ran(tmp_path, "forked", {**bare, **FOREIGN}, "run", "token-parity")
    anew = ran(tmp_path, "anew", {**bare, **FOREIGN, "DDP_AUDIT_WARM_START": "0"}, "run", "token-parity")
    for other in (forked, anew):
        assert other["verdict"] == "pass"
        assert other["result"]["checks"] == clean["result"]["checks"]
        assert other["result"]["summary"] == clean["result"]["summary"]
        assert other["result"]["environment"]["threads"] == 1
        assert other["result"]["environment"]["world_size"] == 2


@pytest.mark.torchrun
def test_environment_is_checked_below_another_launcher(tmp_path: Path) -> None:
    report = ran(tmp_path, "data", {"PATH": "/usr/bin:/bin", **FOREIGN}, "check-environment", "--ranks", "2")
    assert report["shortfalls"] == []
    assert [rank["device"] for rank in report["ranks"]] == ["cpu", "cpu"]


def test_only_what_is_a_launchers_is_left_out() -> None:
    left = for_children({**FOREIGN, **KEPT, "DDP_AUDIT_TOKEN": "t", "DDP_AUDIT_MARKER": "m", "DDP_AUDIT_HOST": "h"})
    assert left == {**KEPT, "OMP_NUM_THREADS": "7", "PYTHONOPTIMIZE": "2", "DDP_AUDIT_HOST": "h"}


@pytest.mark.parametrize("name", [None, *FOREIGN])
def test_half_an_environment_is_no_rank(name: str | None) -> None:
    whole = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "LOCAL_RANK": "0"}
    assert rank_in(whole) == (1, 0)
    assert rank_in({"TORCHELASTIC_RUN_ID": "x"}) is None
    if name in whole:
        assert rank_in({key: value for key, value in whole.items() if key != name}) is None
        assert rank_in({**whole, name: ""}) == ((1, 0) if name == "TORCHELASTIC_RUN_ID" else None)
