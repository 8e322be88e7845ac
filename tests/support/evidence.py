"""Small synthetic final states of trajectories, equal until one is changed."""

from typing import Any

import torch

from trainer.common.checkpoints.rng import capture_rng
from trainer.contract.manifest import FileEntry, Header, Manifest, ParameterEntry
from trainer.kinds.resume.evidence import Evidence

DIGESTS = {"model": "m", "optimizer": "o", "scheduler": "s", "sampler": "p", "rng": "r"}
UPDATES, STOP = 6, 3


def make_evidence(name: str, *, world_size: int = 2, variant: str = "correct") -> Evidence:
    """Return a trajectory of 6 updates that continued after update 3 with exactly the saved state."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(4, 3, generator=generator)
    header = Header(
        kind="resume",
        step=UPDATES,
        world_size=world_size,
        data_lock="a" * 64,
        lock="b" * 64,
        config={"seed": 47, "variant": variant},
        parameters=[ParameterEntry(name="weight", shape=[4, 3], dtype="float32")],
        optimizer=[["weight"]],
        created_at=0.0,
        versions={},
    )
    shared = {
        "model": {"weight": weight.clone()},
        "optimizer": {
            "state": {0: {"momentum_buffer": weight * 2}},
            "param_groups": [{"lr": 0.05, "momentum": 0.9, "nesterov": False, "foreach": None, "params": [0]}],
        },
        "scheduler": {"last_epoch": UPDATES, "base_lrs": [0.1]},
        "extras": {},
    }
    return Evidence(
        name=name,
        manifest=Manifest(header=header, files={"shared.pt": FileEntry(bytes=1, sha256="")}).sealed(),
        shared=shared,
        ranks=[_rank(rank) for rank in range(world_size)],
    )


def _rank(rank: int) -> dict[str, Any]:
    torch.manual_seed(rank)
    ids = torch.arange(UPDATES * 4).reshape(UPDATES, 2, 2) + 100 * rank
    return {
        "rank": rank,
        "rng": capture_rng(torch.device("cpu")),
        "buffers": {},
        "sampler": {
            "ids": ids,
            "losses": torch.linspace(1.4, 1.2, UPDATES, dtype=torch.float64),
            "layouts": ["first", *["rebuilt"] * (UPDATES - 1)],
            "saves": [{"step": STOP, "digests": dict(DIGESTS)}],
            "starts": [
                {"attempt": 1, "step": 0, "digests": dict.fromkeys(DIGESTS, "0")},
                {"attempt": 1, "step": STOP, "digests": dict(DIGESTS)},
            ],
        },
    }


def change(evidence: Evidence, *, start: str = "", amount: float = 0.0, rank: int = 1) -> Evidence:
    """Change the state a rank continued with after update 3 (`start` names it), or the weights by `amount`."""
    if start:
        evidence.ranks[rank]["sampler"]["starts"][-1]["digests"][start] = "other"
    if amount:
        evidence.shared["model"]["weight"][0, 0] += amount
        evidence.ranks[0]["sampler"]["losses"][STOP + 1 :] += amount
    return evidence
