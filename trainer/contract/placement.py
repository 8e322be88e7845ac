"""Decides device, backend and number of GPUs of a run; the only place that does. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

GPUS: Final = re.compile(r"(?:gres/)?gpu(?::[^:,=]*[^:,=0-9][^:,=]*)?(?:[:=]([0-9]+))?")
"""One entry of a scheduler's list of resources: `gpu`, `gpu:2`, `gpu:a100:2`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a run requests."""

    device: str
    """auto, cuda or cpu."""
    ranks: int
    share_gpu: bool = False
    nodes: int = 1
    gpus_per_node: int = 0
    """What it requests from a scheduler."""

    @classmethod
    def of(cls, params: Mapping[str, Any], launch: Mapping[str, Any] | None = None) -> "Ask":
        """Read it from a run's parameters and launch options."""
        ranks = int(params.get("world_size", 1))
        return cls(
            device=str(params.get("device", "auto")),
            ranks=ranks,
            share_gpu=bool(params.get("share_gpu", False)),
            nodes=shape(launch or {}, ranks)[0],
            gpus_per_node=gpus_in(str((launch or {}).get("gres", ""))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a machine has, whether or not it is in use at the moment."""

    gpus: tuple[int, ...] | None = ()
    """Indices of the visible GPUs; None while detection is still running."""
    nccl: bool = True
    """Whether its torch has NCCL."""
    scheduler: str = ""
    """Name of the scheduler that finds the nodes; empty: the attempts run on the worker's own machine."""
    problem: str = ""
    """Why no attempt can be started at the moment."""

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> "Offer":
        """Read it from a worker's published devices; None if the worker has not detected them yet."""
        if document is None:
            return cls(gpus=None)
        gpus = tuple(int(gpu["index"]) for gpu in document.get("gpus") or [])
        scheduler = str(document.get("scheduler") or "")
        return cls(gpus=gpus, nccl=bool(document.get("nccl", True)), scheduler=scheduler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The placement of a run."""

    device: str
    """cuda or cpu."""
    backend: str
    """nccl or gloo."""
    gpus_least: int = 0
    """GPUs that must be free."""
    gpus_most: int = 0
    """GPUs that it uses if that many are free; rank r uses GPU r modulo their number."""

    @property
    def shared(self) -> bool:
        """Whether several ranks may share one GPU."""
        return self.gpus_least < self.gpus_most


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """It cannot run there; `why` says what is missing."""

    why: str


def place(ask: Ask, offer: Offer) -> Place | Unplaceable | None:
    """Return the placement of a run on a machine, or why it cannot run there; None while its GPUs are unknown.

    `auto` and `cuda` use NCCL with one GPU per rank if there are enough GPUs. If there are fewer, `share_gpu` puts
    several ranks on one GPU over gloo; without it, `cuda` is refused and `auto` runs on the CPU. A machine without GPUs
    runs `auto` on the CPU. Whether GPUs are free at the moment affects when a run starts, never its placement.
    """
    if ask.device == "cpu":
        return Place(device="cpu", backend="gloo")
    if offer.scheduler:
        return _place_on_nodes(ask)
    return None if offer.gpus is None else _place_here(ask, offer)


def _place_here(ask: Ask, offer: Offer) -> Place | Unplaceable:
    visible = len(offer.gpus or ())
    if visible >= ask.ranks and offer.nccl:
        return Place(device="cuda", backend="nccl", gpus_least=ask.ranks, gpus_most=ask.ranks)
    if visible and ask.share_gpu:
        return Place(device="cuda", backend="gloo", gpus_least=1, gpus_most=ask.ranks)
    if ask.device == "auto":
        return Place(device="cpu", backend="gloo")
    return Unplaceable(refusal(ask, visible, nccl=offer.nccl))


def _place_on_nodes(ask: Ask) -> Place | Unplaceable:
    ranks = -(-ask.ranks // ask.nodes)
    if ask.gpus_per_node >= ranks:
        return Place(device="cuda", backend="nccl", gpus_least=ranks, gpus_most=ranks)
    if ask.gpus_per_node and ask.share_gpu:
        return Place(device="cuda", backend="gloo", gpus_least=1, gpus_most=ranks)
    if ask.device == "auto":
        return Place(device="cpu", backend="gloo")
    needed = 1 if ask.share_gpu else ranks
    return Unplaceable(
        f"device cuda needs {needed} GPU{'s' if needed > 1 else ''} on every node for {ranks} ranks, and launch.gres "
        f"requests {ask.gpus_per_node}: set launch.gres to gpu:{needed}, or use device cpu or auto"
    )


def shape(launch: Mapping[str, Any], ranks: int) -> tuple[int, int]:
    """Return (nodes, ranks on each) of a run; one that is not given follows from the other."""
    nodes, per_node = launch.get("nodes"), launch.get("ranks_per_node")
    if nodes is None:
        nodes = 1 if per_node is None else max(1, ranks // int(per_node))
    return int(nodes), int(per_node or max(1, ranks // int(nodes)))


def gpus_in(resources: str) -> int:
    """Return the GPUs on each node in a scheduler's list of resources, such as `gpu:a100:2`."""
    found = (GPUS.fullmatch(part.strip()) for part in resources.split(","))
    return sum(int(match[1] or 1) for match in found if match)


def refusal(ask: Ask, visible: int, *, nccl: bool = True) -> str:
    """Return why `cuda` is not possible with this number of visible GPUs, and what would work."""
    needed = 1 if ask.share_gpu else ask.ranks
    gpus = "1 GPU is" if visible == 1 else f"{visible} GPUs are"
    if visible >= needed and not nccl:
        return "device cuda needs NCCL, which this torch build lacks: set share_gpu to use the GPUs over gloo"
    share = "" if ask.share_gpu or not visible else ", or set share_gpu to put several ranks on one GPU over gloo"
    return (
        f"device cuda needs {needed} GPU{'s' if needed > 1 else ''} for {ask.ranks} ranks and {gpus} visible. "
        f"There is no silent fallback to the CPU: make more GPUs visible, use device cpu or auto{share}"
    )


def not_validated(device: str, backend: str) -> list[str]:
    """Return the limits of a result that follow from the devices of its ranks; empty for NCCL."""
    if backend == "nccl":
        return []
    found = [f"The ranks communicated over {backend} on {device}: NCCL was not validated."]
    if device == "cuda":
        found.append(
            "Ranks shared GPUs over gloo (share_gpu): one process per GPU was not validated, and memory and time "
            "differ from those with one GPU per rank."
        )
    return found
