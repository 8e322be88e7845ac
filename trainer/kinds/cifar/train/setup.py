"""Builds the training objects of one rank: network, DDP wrapper, AdamW, cosine schedule, precision."""

import copy
import hashlib
import inspect
import json
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile

from trainer.common.distributed import Group
from trainer.kinds.cifar.facts import MemoryFacts
from trainer.kinds.cifar.params import CifarParams
from trainer.kinds.cifar.train.model import CifarNet


def build_network(params: CifarParams, classes: int, device: torch.device) -> CifarNet:
    """Return the network with weights that depend only on the seed, in channels-last memory."""
    torch.manual_seed(params.seed)
    network = CifarNet(classes, activation_checkpointing=params.activation_checkpointing)
    return network.to(device).to(memory_format=torch.channels_last)


def wrap(network: nn.Module, group: Group, bucket_cap_mb: float) -> DistributedDataParallel:
    """Return `network` wrapped in DDP without buffer broadcast: every rank keeps its own running statistics.

    The broadcast would add collectives that depend on `no_sync`, so `no_sync` would not be the only difference between
    the modes.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    # Renamed in torch 2.14; the old name still works there, with a warning.
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False}
    if group.device.type == "cuda":
        options["device_ids"] = [group.device]
    return DistributedDataParallel(network, bucket_cap_mb=bucket_cap_mb, **options)


def build_optimizer(params: CifarParams, network: nn.Module) -> AdamW:
    """Return fused AdamW over all parameters."""
    return AdamW(network.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay, fused=True)


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return class and settings of the optimizer on one line."""
    settings = {key: value for key, value in optimizer.defaults.items() if key in ("betas", "eps", "weight_decay")}
    rate = optimizer.param_groups[0].get("initial_lr", optimizer.param_groups[0]["lr"])
    return f"{type(optimizer).__name__} {json.dumps({'lr': rate, **settings})}, cosine over epochs"


def describe_determinism() -> str:
    """Return the determinism policy in effect, as reported by torch."""
    return (
        f"deterministic algorithms {torch.are_deterministic_algorithms_enabled()}, "
        f"cuDNN benchmark {torch.backends.cudnn.benchmark}, threads {torch.get_num_threads()}, "
        f"CUBLAS_WORKSPACE_CONFIG {os.environ.get('CUBLAS_WORKSPACE_CONFIG', 'unset')}"
    )


def state_digest(network: nn.Module) -> str:
    """Return the SHA-256 of the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the autocast context of a forward pass: BF16, or none for FP32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def measure_memory(network: CifarNet, batch: int, precision: str) -> MemoryFacts:
    """Return the peak bytes of one micro-batch with and without activation checkpointing, on a copy of the network."""
    peaks = {}
    for checkpointed in (False, True):
        twin = copy.deepcopy(network)
        twin.activation_checkpointing = checkpointed
        peaks[checkpointed] = _peak_bytes(twin, batch, precision)
    return MemoryFacts(plain=peaks[False], checkpointed=peaks[True])


def _peak_bytes(network: CifarNet, batch: int, precision: str) -> int:
    device = next(network.parameters()).device
    images = torch.zeros(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)

    def step() -> None:
        with autocast(device, precision):
            total = network(images).sum()
        total.backward()

    step()  # allocates gradients and library workspaces, which are not activations
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return int(torch.cuda.max_memory_allocated(device) - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        step()
    return _peak_of(recording)


def _peak_of(recording: profile) -> int:
    # The CPU allocator does not record a peak; the profiler lists every allocation and release in time order.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.json"
        recording.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((item for item in events if item.get("name") == "[memory]"), key=lambda item: item["ts"])
    level = peak = 0
    for change in changes:
        level += int(change["args"]["Bytes"])
        peak = max(peak, level)
    return peak
