"""Training loops of transformers, Accelerate, Lightning, FSDP2 and torchvision, with and without a mistake."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import COMMAND, environment
from tests.support.traced import SCRIPTS

PYTHON = sys.executable
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LAUNCHERS = {
    "hf_trainer": TORCHRUN,
    "accelerate_loop": TORCHRUN,  # on a CPU `accelerate launch` starts one process
    "lightning_trainer": (PYTHON,),
    "fsdp2": TORCHRUN,
    "torchvision_style": TORCHRUN,
}


def traced(tmp_path: Path, script: str, case: str) -> dict[str, Any]:
    """Return the document of a run that traced the script."""
    done = subprocess.run(
        [str(COMMAND), "trace", "--json", "--", *LAUNCHERS[script], str(SCRIPTS / f"{script}.py"), case],
        env=environment(tmp_path / "data", {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["state"] == "succeeded", done.stderr[-3000:]
    return document


@pytest.mark.torchrun
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "engine"),
    [
        ("hf_trainer", "ddp"),
        ("accelerate_loop", "ddp"),
        ("lightning_trainer", "ddp"),
        ("fsdp2", "fsdp2"),
        ("torchvision_style", "ddp"),
    ],
)
def test_right_loop_has_nothing_wrong(script: str, engine: str, tmp_path: Path) -> None:
    document = traced(tmp_path, script, "right")
    summary = document["result"]["summary"]
    assert [item for item in summary["findings"] if item["severity"] == "wrong"] == []
    weighed = {check["name"]: check["passed"] for check in document["result"]["checks"]}
    assert (weighed["token_weights"], weighed["loss_scale"], summary["engine"]) == (True, True, engine)


@pytest.mark.torchrun
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "case"),
    [
        ("hf_trainer", "rank_mean"),
        ("accelerate_loop", "short_last_window"),
        ("lightning_trainer", "mean_of_means"),
        ("fsdp2", "rank_mean"),
        ("torchvision_style", "same_order_every_epoch"),
    ],
)
def test_mistake_is_named(script: str, case: str, tmp_path: Path) -> None:
    document = traced(tmp_path, script, case)
    wrong = [item["name"] for item in document["result"]["summary"]["findings"] if item["severity"] == "wrong"]
    assert document["verdict"] == "fail"
    assert case in wrong
    assert set(wrong) <= {case, "repeated_samples"}
