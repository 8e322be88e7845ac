"""Which device and backend a run gets, and how many GPUs: the one place where that is decided. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a run asks for."""

    device: str
    """auto, cuda or cpu."""
    ranks: int
    share_gpu: bool = False

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Ask":
        """Read it from a run's parameters."""
        return cls(
            device=str(params.get("device", "auto")),
            ranks=int(params.get("world_size", 1)),
            share_gpu=bool(params.get("share_gpu", False)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a machine has, whoever uses it at the moment."""

    gpus: tuple[int, ...] | None = ()
    """Indices of the visible GPUs; None while they are still being looked for."""
    nccl: bool = True
    """Whether its torch has NCCL."""

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> "Offer":
        """Read it from a worker's published devices; None is a worker that has not looked yet."""
        if document is None:
            return cls(gpus=None)
        gpus = tuple(int(gpu["index"]) for gpu in document.get("gpus") or [])
        return cls(gpus=gpus, nccl=bool(document.get("nccl", True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run belongs."""

    device: str
    """cuda or cpu."""
    backend: str
    """nccl or gloo."""
    gpus_least: int = 0
    """GPUs that must be free."""
    gpus_most: int = 0
    """GPUs that it uses if that many are free; rank r uses entry r modulo their number."""

    @property
    def shared(self) -> bool:
        """Whether several ranks may end up on one GPU."""
        return self.gpus_least < self.gpus_most


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """It cannot run there; `why` says what is missing."""

    why: str


def place(ask: Ask, offer: Offer) -> Place | Unplaceable | None:
    """Return where a run belongs on a machine, or why it cannot run there; None while its GPUs are not known.

    `auto` and `cuda` take NCCL with one GPU per rank where there are as many. Where there are fewer, `share_gpu` puts
    several ranks on one GPU over gloo; without it `cuda` is refused and `auto` runs on the CPU. A machine without any
    GPU runs `auto` on the CPU. Whether GPUs are free at the moment decides when a run starts, never where.
    """
    if ask.device == "cpu":
        return Place(device="cpu", backend="gloo")
    if offer.gpus is None:
        return None
    visible = len(offer.gpus)
    if visible >= ask.ranks and offer.nccl:
        return Place(device="cuda", backend="nccl", gpus_least=ask.ranks, gpus_most=ask.ranks)
    if visible and ask.share_gpu:
        return Place(device="cuda", backend="gloo", gpus_least=1, gpus_most=ask.ranks)
    if ask.device == "auto":
        return Place(device="cpu", backend="gloo")
    return Unplaceable(refusal(ask, visible, nccl=offer.nccl))


def refusal(ask: Ask, visible: int, *, nccl: bool = True) -> str:
    """Return why `cuda` cannot be had with so many visible GPUs, and what would work."""
    needed = 1 if ask.share_gpu else ask.ranks
    gpus = "1 GPU is" if visible == 1 else f"{visible} GPUs are"
    if visible >= needed and not nccl:
        return "device cuda needs NCCL, which this torch lacks: set share_gpu to use the GPUs over gloo"
    share = "" if ask.share_gpu or not visible else ", or set share_gpu to put several ranks on one GPU over gloo"
    return (
        f"device cuda needs {needed} GPU{'s' if needed > 1 else ''} for {ask.ranks} ranks and {gpus} visible. "
        f"There is no silent fallback to the CPU: make more GPUs visible, ask for device cpu or auto{share}"
    )


def not_validated(device: str, backend: str) -> list[str]:
    """Return what a result says it does not show because of where the ranks ran; empty for NCCL."""
    if backend == "nccl":
        return []
    found = [f"The ranks talked over {backend} on {device}: NCCL was not validated."]
    if device == "cuda":
        found.append(
            "Ranks shared GPUs over gloo (share_gpu): one process per GPU was not validated, and memory and time are "
            "not those of one GPU per rank."
        )
    return found
