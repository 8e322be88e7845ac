"""How a group of ranks would run, from the visible devices; and that a trial really starts it."""

import os
import subprocess
import sys

import pytest

from trainer.contract.environment import EnvironmentReport, RankDevice
from trainer.trial import choose, run_trial


@pytest.mark.parametrize(
    ("device", "share", "visible", "expected"),
    [
        ("auto", False, 2, ("cuda", "nccl")),
        ("auto", False, 3, ("cuda", "nccl")),
        ("auto", False, 1, ("cpu", "gloo")),
        ("auto", True, 1, ("cuda", "gloo")),
        ("auto", True, 0, ("cpu", "gloo")),
        ("cuda", False, 2, ("cuda", "nccl")),
        ("cuda", True, 1, ("cuda", "gloo")),
        ("cpu", False, 8, ("cpu", "gloo")),
    ],
)
def test_backend_follows_what_is_visible(device: str, share: bool, visible: int, expected: tuple[str, str]) -> None:
    trial = choose(2, device, share_gpu=share, visible=visible, nccl=True)
    assert (trial.device, trial.backend) == expected
    assert trial.shortfalls == []


def test_cuda_never_falls_back() -> None:
    trial = choose(2, "cuda", share_gpu=False, visible=1, nccl=True)
    assert trial.device == "cuda"
    assert "needs 2 GPUs for 2 ranks and 1 GPU is visible" in trial.shortfalls[0]
    assert run_trial(trial).ranks == []


def test_cuda_without_nccl_falls_short() -> None:
    assert "needs NCCL" in choose(2, "cuda", share_gpu=False, visible=2, nccl=False).shortfalls[0]
    assert choose(2, "auto", share_gpu=False, visible=2, nccl=False).backend == "gloo"


def probed(*arguments: str, **environment: str) -> EnvironmentReport:
    """Return the probe's report; a separate process, since the trial forks its ranks."""
    argv = [sys.executable, "-m", "trainer.probe", "--device", "cpu", *arguments]
    output = subprocess.run(argv, capture_output=True, check=False, env={**os.environ, **environment}, timeout=120)
    return EnvironmentReport.model_validate_json(output.stdout)


def test_trial_brings_up_every_rank() -> None:
    report = probed("--ranks", "3")
    assert report.ranks == [RankDevice(rank=rank, device="cpu") for rank in range(3)]
    assert report.shortfalls == []


def test_trial_tells_a_wrong_interface() -> None:
    report = probed("--ranks", "2", GLOO_SOCKET_IFNAME="no-such-interface")
    assert len(report.shortfalls) == 2
    assert "no-such-interface" in report.shortfalls[0]


def test_no_ranks_is_a_shortfall() -> None:
    assert "0 ranks requested" in run_trial(choose(0, "cpu", share_gpu=False)).shortfalls[0]
