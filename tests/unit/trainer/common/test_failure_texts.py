"""Failures of the machine, as readable texts."""

import pytest
import torch

from trainer.common.failures import (
    NondeterministicOperatorError,
    OutOfMemoryError,
    explained,
    group_init_text,
    shared_gpu_text,
    world_size_text,
)


def test_world_size_names_both_numbers() -> None:
    text = world_size_text(2, 3)
    assert "expected a world size of 2, got 3" in text
    assert "--nproc-per-node 2" in text


def test_shared_gpu_shows_the_map() -> None:
    text = shared_gpu_text({1: "cuda:0", 0: "cuda:0"})
    assert "rank 0 -> cuda:0, rank 1 -> cuda:0" in text
    assert "before touching the formula" in text


def test_init_failure_names_interface_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.setenv("MASTER_PORT", "12345")
    text = group_init_text("gloo", 2, RuntimeError("refused"))
    for part in (
        "gloo group of 2",
        "RuntimeError: refused",
        "GLOO_SOCKET_IFNAME=eth7",
        "12345",
        "no fallback from gloo",
    ):
        assert part in text


def test_out_of_memory_names_rank_and_device() -> None:
    with (
        pytest.raises(
            OutOfMemoryError, match=r"rank 1 ran out of memory on cuda:1: tried to allocate 2 GiB.*started again"
        ),
        explained(1, "cuda:1"),
    ):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")


def test_nondeterministic_operator_keeps_its_message() -> None:
    message = "max_pool3d_backward_cuda does not have a deterministic implementation, but you set something"
    with pytest.raises(NondeterministicOperatorError) as failure, explained(0, "cuda:0"):
        raise RuntimeError(message)
    assert message in str(failure.value)
    assert "operator max_pool3d_backward_cuda is not deterministic" in str(failure.value)


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes differ$"), explained(0, "cpu"):
        raise RuntimeError("shapes differ")
