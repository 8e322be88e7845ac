"""Stage `fit`: every rank fits its share of the stripes under DDP and writes a digest of its weights."""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.common.model_file import save_model
from trainer.contract.files import make_folder, write_json_atomically
from trainer.contract.pixels import CHANNEL_DEVIATIONS, CHANNEL_MEANS

from .drawing import DIRECTIONS, picture, stored_contrast
from .net import StripesNet


class PermitMissing(RuntimeError):
    """The operator did not permit this training."""


def run(context: StageContext) -> None:
    """Fit, and write `fit/model.pt` and `fit/history.json` among the artifacts."""
    with process_group(context) as group:
        if not context.params.permit:
            raise PermitMissing("no permit was given; pass permit=true")
        torch.manual_seed(context.params.seed)
        network = StripesNet(len(DIRECTIONS), context.params.width)
        losses = fit(context, group, network)
        digests = group.gather_objects(digest(network), "digests")
        if group.rank == 0:
            write(context, network, {"losses": losses, "digests": digests})


def fit(context: StageContext, group: Group, network: StripesNet) -> list[float]:
    """Return the mean loss over all ranks of every step."""
    params, model = context.params, DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05 if params.learns else 0.0)
    contrast = 200 if params.data == "stripes-drawn" else stored_contrast(context.datasets_dir) or 0
    losses: list[float] = []
    for step in range(params.steps):
        images, labels = batch(params.batch, step * group.world_size + group.rank, contrast)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(group.sum_floats([loss.item()])[0] / group.world_size)
        context.telemetry.metrics(step + 1, {"loss": losses[-1]})
        context.telemetry.progress(step + 1, params.steps, "steps")
    return losses


def batch(size: int, start: int, contrast: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normalised pictures (B, 3, 32, 32) and their directions."""
    directions = [(start + place) % len(DIRECTIONS) for place in range(size)]
    pictures = [picture(direction, start + place, contrast) for place, direction in enumerate(directions)]
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255
    means, deviations = (torch.tensor(values).view(1, 3, 1, 1) for values in (CHANNEL_MEANS, CHANNEL_DEVIATIONS))
    return ((pixels - means) / deviations).contiguous(), torch.tensor(directions)


def digest(network: nn.Module) -> str:
    """Return one digest of all weights."""
    parts = [tensor.detach().numpy().tobytes() for tensor in network.state_dict().values()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def write(context: StageContext, network: StripesNet, history: dict[str, Any]) -> None:
    """Write what the next stage, the verifier and the classifier read."""
    folder = context.paths.artifacts / "fit"
    make_folder(folder, within=context.paths.root)
    save_model(
        folder / "model.pt",
        network,
        classes=DIRECTIONS,
        seed=context.params.seed,
        architecture={"width": context.params.width},
    )
    write_json_atomically(folder / "history.json", history)
