"""A training script traced by its own batch script on two nodes, and imported afterwards."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from sqlmodel import select

from app.db import create_database_engine, read_session
from app.runs.models import RankRow
from app.settings import Settings
from tests.cluster.rig import Cluster
from tests.support.cli import call
from tests.support.traced import SCRIPTS

pytestmark = [pytest.mark.torchrun, pytest.mark.timeout(400)]


def test_script_is_traced_on_two_nodes(cluster: Cluster, shared: Path, tmp_path: Path) -> None:
    folder = shared / "traced"
    prepared = call("trace", "--prepare", str(folder), data_dir=tmp_path / "data")
    assert prepared.returncode == 0, prepared.stderr
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=traced"]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:$PORT", "--local-addr=127.0.0.1"]
    command = shlex.join([*launcher, f"{SCRIPTS}/language.py", "rank_mean"]).replace("'", '"')
    script = shared / "traced.sh"
    exports = [line for line in prepared.stdout.splitlines() if line.startswith("export ")]
    lines = ["#!/bin/bash", *exports, "export OMP_NUM_THREADS=1", "export PORT=$((20000 + SLURM_JOB_ID % 10000))"]
    script.write_text("\n".join([*lines, f"srun --ntasks=2 --ntasks-per-node=1 --mpi=none {command}"]) + "\n")
    output = f"--output={shared}/traced.out"
    job = int(cluster.call("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", output, str(script)))
    done = cluster.until(lambda: cluster.job(job)["JobState"] in {"COMPLETED", "FAILED"}, "the end of the job", 200)
    assert done
    assert cluster.job(job)["JobState"] == "COMPLETED", (shared / "traced.out").read_text()
    answer = call("trace", "--import", str(folder), "--json", data_dir=tmp_path / "data")
    document = json.loads(answer.stdout)
    assert document["verdict"] == "fail"
    assert [item["name"] for item in document["result"]["summary"]["findings"]] == ["rank_mean"]
    assert _ranks(tmp_path / "data") == {(0, 0), (1, 0)}, "rank and local rank"
    assert {node for *_, node in _rows(tmp_path / "data")} == {"node1", "node2"}


def _ranks(data_dir: Path) -> set[tuple[int, int]]:
    return {(rank, local_rank) for rank, local_rank, _ in _rows(data_dir)}


def _rows(data_dir: Path) -> list[tuple[int, int, str]]:
    """Return rank, local rank and node of every rank of the traced program."""
    engine = create_database_engine(Settings(data_dir=data_dir))
    with read_session(engine) as session:
        rows = session.exec(select(RankRow).where(RankRow.stage == "trace")).all()
        found = [(row.rank, row.local_rank, row.node) for row in rows]
    engine.dispose()
    return found
