"""Refusals of a rank before it joins a group, and its first event."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.contexts import stage_context
from trainer.common.distributed import Group, _refuse_shared_gpus, gpu_identity, process_group
from trainer.common.failures import DeviceMapError, GroupInitError, WorldSizeError


@pytest.fixture(autouse=True)
def _process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Do not change the test process's parent-death signal and torch's global policy."""
    monkeypatch.setattr("trainer.common.process.die_with_parent", lambda: None)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def _events(root: Path) -> list[dict[str, Any]]:
    lines = (root / "test" / "attempt_1" / "rank0.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_single_process_needs_no_group(tmp_path: Path) -> None:
    with process_group(stage_context(tmp_path)) as group:
        assert (group.world_size, group.backend, str(group.device)) == (1, "none", "cpu")
        assert group.sum_integers([3, 4]) == [3, 4]
        assert group.max_integers([2]) == [2]
        assert group.sum_floats([0.1]) == [0.1]
        assert group.gather_objects("a") == ["a"]
        assert group.broadcast_object("b") == "b"
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
    start = _events(tmp_path)[0]
    assert (start["type"], start["device"], start["world_size"]) == ("start", "cpu", 1)
    assert start["versions"]["torch"] == torch.__version__.partition("+")[0]


def test_wrong_world_size_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    context = stage_context(tmp_path, world_size=3)
    with pytest.raises(WorldSizeError, match="expected a world size of 2, got 3"), process_group(context):
        pass
    assert [event["type"] for event in _events(tmp_path)] == ["start"]


def test_missing_gpus_never_fall_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    context = stage_context(tmp_path, world_size=2, device="cuda", gpus=(0, 1))
    with pytest.raises(DeviceMapError, match="1 GPUs are visible where 2 are needed"), process_group(context):
        pass


@pytest.mark.parametrize("gpus", [(0, 0), (0,)])
def test_two_ranks_on_one_gpu_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: tuple[int, ...]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    context = stage_context(tmp_path, world_size=2, device="cuda", gpus=gpus)
    with pytest.raises(DeviceMapError, match="rank 0 -> cuda:0, rank 1 -> cuda:0"), process_group(context):
        pass


@pytest.mark.parametrize("name", ["^lo", "no-such-interface"])
def test_wrong_interface_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
    context = stage_context(tmp_path, world_size=2)
    with (
        pytest.raises(GroupInitError, match=r"GLOO_SOCKET_IFNAME=.* is not an interface.*exactly one"),
        process_group(context),
    ):
        pass


@pytest.mark.parametrize(("other", "refused"), [("a", True), ("b", False)])
def test_same_serial_number_is_the_same_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, *, refused: bool
) -> None:
    def gathered(_group: Group, own: tuple[str, str, str], _what: str) -> list[tuple[str, str, str]]:
        return [(own[0], other, "the GPU of rank 0"), own]

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(name="H", uuid="a"))
    monkeypatch.setattr(Group, "gather_objects", gathered)
    device, telemetry = torch.device("cuda", 1), stage_context(tmp_path).telemetry
    assert gpu_identity(device) == "cuda:1 H a"
    group = Group(rank=1, world_size=2, device=device, backend="nccl", telemetry=telemetry)
    _refuse_shared_gpus(group, share_gpu=True)
    if refused:
        with pytest.raises(DeviceMapError, match=r"rank 0 -> the GPU of rank 0, rank 1 -> .* cuda:1 H a"):
            _refuse_shared_gpus(group, share_gpu=False)
    else:
        _refuse_shared_gpus(group, share_gpu=False)
