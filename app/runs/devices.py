"""Whether any live worker has the devices that a run requests."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.runs.errors import refused
from app.runs.models import WorkerRow
from trainer.contract.params import CommonParams
from trainer.contract.placement import Ask, Offer, Unplaceable, place


def check_devices(params: CommonParams, launch: Mapping[str, Any], workers: Sequence[WorkerRow]) -> None:
    """Refuse a run that needs more GPUs than any live worker has; with no live worker the run waits.

    Raises Refused with the numbers of the worker that has the most.
    """
    ask = Ask.of(params.model_dump(include={"device", "world_size", "share_gpu"}), launch)
    offers = [Offer.of(worker.devices) for worker in workers]
    placed = [place(ask, offer) for offer in offers]
    if not placed or not all(isinstance(found, Unplaceable) for found in placed):
        return
    _, most = max(((len(offer.gpus or ()), index) for index, offer in enumerate(offers)))
    found = placed[most]
    if isinstance(found, Unplaceable):
        raise refused("device", f"{found.why} (no live worker has them)", "no_devices")
