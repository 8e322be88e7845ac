"""Checkpoints of a real training, mixed and changed by hand with matching manifests: only a valid one is continued."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkpoints import renew
from tests.support.cli import Done, call
from tests.support.pages_data import add_run, add_stages
from tests.support.worker_lab import Lab, open_lab
from trainer.common.checkpoints.digest import digest
from trainer.contract.manifest import verify

pytestmark = pytest.mark.torchrun

PARAMS: dict[str, Any] = {
    "device": "cpu",
    "mode": "no_sync",
    "epochs": 3,
    "batch_size": 4,
    "train_size": 128,
    "validation_size": 21,
    "test_size": 61,
    "save_every": 3,
    "precision": "fp32",
}
"""12 steps; checkpoints after 6, 8, 9 and 12 are kept."""
STAGE = "train-no-sync"
STEP, OLDER, LAST = "step-0009", "step-0006", "step-0012"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("checkpoints")) as lab:
        lab.worker()
        yield lab


@pytest.fixture(scope="module")
def trained(lab: Lab) -> Path:
    """Return the checkpoints of a complete training."""
    run = lab.finished(lab.submit("cifar", "quick", **PARAMS), 240)
    assert (run.state, run.verdict) == ("succeeded", "pass")
    root = lab.paths(run.id or 0).checkpoints()
    assert {path.name for path in root.iterdir()} >= {STEP, OLDER, LAST}
    return root


@pytest.fixture
def copy(lab: Lab, trained: Path) -> Callable[..., tuple[int, Path]]:
    """Return a function that records an interrupted run with some of these checkpoints, and returns its number."""

    def make(*names: str) -> tuple[int, Path]:
        number = add_run(lab.engine, "failed", reason="rank_signal", kind="cifar", params=PARAMS)
        add_stages(lab.engine, number, {"prepare": "succeeded", STAGE: "failed", "audit": "queued"})
        root = lab.paths(number).checkpoints()
        for name in names:
            shutil.copytree(trained / name, root / name)
        return number, root

    return make


def ask(lab: Lab, *arguments: str) -> Done:
    return call(*arguments, "--json", data_dir=lab.settings.data_dir)


def problems(lab: Lab, number: int) -> dict[str, str]:
    """Return the report of `check-checkpoints`, by path; the exit code must match."""
    done = ask(lab, "check-checkpoints", str(number))
    found = {item["path"]: item["problem"] for item in done.document["items"]}
    bad = [item for item in done.document["items"] if not item["valid"] and item["step"] is not None]
    assert (done.returncode, done.document["ok"]) == ((1, False) if bad else (0, True))
    return found


def refused(lab: Lab, number: int) -> str:
    """Return why `retry --resume` is refused; no run may be recorded."""
    before = ask(lab, "list").document["items"]
    done = ask(lab, "retry", str(number), "--resume")
    assert done.returncode == 2, done
    assert ask(lab, "list").document["items"] == before
    return done.stdout + done.stderr


def final_state(checkpoint: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(checkpoint / "shared.pt", weights_only=True)
    return {name: digest(content[name]) for name in ("model", "optimizer", "scheduler")}


def rewrite(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, file)
    renew(file.parent)


def narrow_moments(content: dict[str, Any]) -> None:
    for state in content["optimizer"]["state"].values():
        state["exp_avg"] = state["exp_avg"].bfloat16()


def test_sound_checkpoint_goes_on(lab: Lab, trained: Path, copy: Callable[..., tuple[int, Path]]) -> None:
    number, root = copy(STEP, OLDER)
    rewrite(root / STEP / "shared.pt", lambda _: None)
    shutil.copytree(trained / LAST, root / f"{LAST}.tmp")
    shutil.copytree(trained / LAST, root / "step-best")
    renew(root / OLDER, created_at=verify(root / STEP).header.created_at + 1e6)  # the clock has been set back since
    foreign = "not a checkpoint: its name is not step- and a number"
    assert problems(lab, number) == {
        f"checkpoints/{STEP}": "",
        f"checkpoints/{OLDER}": "",
        f"checkpoints/{LAST}.tmp": foreign,
        "checkpoints/step-best": foreign,
    }
    again = ask(lab, "retry", str(number), "--resume").document
    assert again["resume_from"] == f"checkpoints/{STEP}"
    run = lab.finished(again["id"], 240)
    assert (run.state, run.verdict) == ("succeeded", "pass")
    assert final_state(lab.paths(again["id"]).checkpoints() / LAST) == final_state(trained / LAST)


@pytest.mark.parametrize("case", [("shared.pt", LAST, 12), ("rank1.pt", OLDER, 6)])
def test_file_of_another_step(
    lab: Lab, trained: Path, copy: Callable[..., tuple[int, Path]], case: tuple[str, str, int]
) -> None:
    name, other, step = case
    number, root = copy(STEP)
    shutil.copy(trained / other / name, root / STEP / name)
    renew(root / STEP)
    text = f"{name} is of step {step}, manifest.json is of step 9"
    assert problems(lab, number) == {f"checkpoints/{STEP}": text}
    assert f"no valid checkpoint to resume from; checkpoints/{STEP}: {text}" in refused(lab, number)
    shutil.copytree(trained / OLDER, root / OLDER)
    again = ask(lab, "retry", str(number), "--resume").document
    assert again["resume_from"] == f"checkpoints/{OLDER}"
    assert again["history"][0]["note"].endswith(f"skipped checkpoints/{STEP}: {text}")
    ask(lab, "cancel", str(again["id"]))


def test_moments_of_another_type(lab: Lab, copy: Callable[..., tuple[int, Path]]) -> None:
    number, root = copy(STEP)
    rewrite(root / STEP / "shared.pt", lambda _: None)
    assert problems(lab, number) == {f"checkpoints/{STEP}": ""}
    rewrite(root / STEP / "shared.pt", narrow_moments)
    (text,) = problems(lab, number).values()
    assert text.startswith("shared.pt: optimizer.")
    assert text.endswith(".exp_avg: float32 when it was saved, bfloat16 in the file")
    assert text in refused(lab, number)


def test_part_of_another_step_stops_all_ranks(lab: Lab, trained: Path, copy: Callable[..., tuple[int, Path]]) -> None:
    """Faults that only loading can detect are refused by all ranks with one text, before any training."""
    number, root = copy(STEP)
    later = torch.load(trained / LAST / "shared.pt", weights_only=True)
    rewrite(root / STEP / "shared.pt", lambda content: content.update(scheduler=later["scheduler"]))
    again = ask(lab, "retry", str(number), "--resume").document["id"]
    run = lab.finished(again, 240)
    assert (run.state, run.reason) == ("failed", "rank_exit")
    text = f"rank 0: {STEP}: shared.pt: scheduler.last_epoch is 3, it was 2 when step 9 was saved"
    errors = [json.loads(event.line)["text"] for event in lab.events(again) if event.type == "error"]
    assert errors == [text] * 2
    assert text in run.diagnosis
