"""Whether any live worker has the devices a run asks for."""

from collections.abc import Sequence

from app.runs.errors import refused
from app.runs.models import WorkerRow
from trainer.contract.params import CommonParams


def gpus_needed(params: CommonParams) -> int:
    """Return how many GPUs a run cannot do without: none unless `cuda` is asked for."""
    if params.device != "cuda":
        return 0
    return 1 if params.share_gpu else params.world_size


def visible_gpus(worker: WorkerRow) -> int | None:
    """Return how many GPUs a worker reports, None while it has not looked yet."""
    if worker.devices is None:
        return None
    return len(worker.devices.get("gpus") or [])


def check_devices(params: CommonParams, workers: Sequence[WorkerRow]) -> None:
    """Refuse a run that needs more GPUs than every live worker has; with no live worker the run waits.

    Raises Refused naming the numbers.
    """
    needed = gpus_needed(params)
    visible = [visible_gpus(worker) for worker in workers]
    known = [count for count in visible if count is not None]
    if not needed or len(known) < len(visible) or not known or max(known) >= needed:
        return
    raise refused(
        "device",
        f"cuda needs {needed} GPUs for world_size {params.world_size}, the live workers see {max(known)}; "
        "use device cpu or auto, a smaller world_size, share_gpu, or a machine with more GPUs",
        "no_devices",
    )
