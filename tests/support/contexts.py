"""Stage contexts for calling trainer code inside the test process."""

from pathlib import Path
from typing import Any

from trainer.common.context import StageContext
from trainer.common.telemetry import Telemetry
from trainer.contract.config import RunConfig
from trainer.contract.kinds import kinds, resolve_params
from trainer.contract.paths import RunPaths


def stage_context(
    root: Path,
    kind: str = "token-parity",
    *,
    rank: int = 0,
    world_size: int = 1,
    device: str = "cpu",
    gpus: tuple[int, ...] = (),
    **given: Any,
) -> StageContext:
    """Return the context of one rank of a run in `root`; `given` are the kind's parameters."""
    spec, paths = kinds()[kind], RunPaths(root)
    root.mkdir(exist_ok=True)  # as the worker does
    params = resolve_params(spec, None, given)
    return StageContext(
        config=RunConfig(
            run_id=1,
            kind=kind,
            params=params.model_dump(mode="json"),
            backend="nccl" if device == "cuda" else "gloo",
            device=device,
            gpus=list(gpus),
            datasets_dir=str(root),
        ),
        kind=spec,
        params=params,
        paths=paths,
        stage="test",
        attempt=1,
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        telemetry=Telemetry(paths.attempt("test", 1), rank),
    )
