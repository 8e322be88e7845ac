"""Facts of a correct `cifar` training for given parameters, to be broken in one place by a test."""

from typing import Any

from trainer.common.witness_facts import WindowEvidence
from trainer.kinds.cifar.facts import (
    EpochFacts,
    MemoryFacts,
    ModeFacts,
    RunFacts,
    SampledWindow,
    StartFacts,
    TestFacts,
)
from trainer.kinds.cifar.params import CifarParams, Mode

GRADIENT_BYTES = 558_538 * 4
CLASSES = ("cat", "dog", "frog")


def parameters(**given: Any) -> CifarParams:
    """Return parameters of two epochs, four steps each, three test classes of 20 images."""
    sizes = {"epochs": 2, "batch_size": 5, "train_size": 160, "validation_size": 20, "test_size": 60}
    return CifarParams.model_validate({**sizes, **given})


def epoch_facts(params: CifarParams, mode: Mode, epoch: int, **broken: Any) -> EpochFacts:
    """Return one correct epoch, with `broken` replaced."""
    ranks = params.world_size
    values: dict[str, Any] = {
        "epoch": epoch,
        "optimizer_steps": [params.steps_per_epoch] * ranks,
        "micro_batches": [params.micro_batches] * ranks,
        "samples": [params.samples_per_rank] * ranks,
        "gradient_syncs": [params.syncs_per_epoch(mode)] * ranks,
        "repeated_ids": [],
        "distinct_ids": params.train_size,
        "reduced_bytes": params.syncs_per_epoch(mode) * GRADIENT_BYTES,
        "buckets": params.syncs_per_epoch(mode),
        "communication_seconds": 0.5,
        "seconds": 2.0,
        "train_loss": 1.0 / epoch,
        "train_accuracy": 0.5,
        "validation_loss": 1.1,
        "validation_accuracy": 0.4,
    }
    return EpochFacts(**{**values, **broken})


def window(params: CifarParams, mode: Mode, step: int, *, hook: int | None = None, **broken: Any) -> SampledWindow:
    """Return one sampled window on which both witnesses are right by default."""
    syncs = params.syncs_per_step(mode)
    evidence = {
        "step": step,
        "reductions": syncs,
        "unmatched_bytes": 0,
        "events": syncs,
        "size": syncs * GRADIENT_BYTES,
        "trace": "",
    }
    return SampledWindow(
        epoch=step // params.steps_per_epoch + 1,
        hook_count=syncs if hook is None else hook,
        evidence=WindowEvidence(**{**evidence, **broken}),
    )


def mode_facts(params: CifarParams, mode: Mode, **broken: Any) -> ModeFacts:
    """Return correct facts of one mode, with `broken` replaced."""
    ranks = params.world_size
    values: dict[str, Any] = {
        "mode": mode,
        "parameters": 558_538,
        "gradient_bytes": GRADIENT_BYTES,
        "epochs": [epoch_facts(params, mode, epoch) for epoch in range(1, params.epochs + 1)],
        "windows": [window(params, mode, step) for step in (0, 1, 2, params.steps_per_epoch)],
        "start": StartFacts(
            weights=["a1"] * ranks,
            ids=[f"b{rank}" for rank in range(ranks)],
            views=[f"c{rank}" for rank in range(ranks)],
            optimizer="AdamW",
            determinism="on",
            data_lock="d",
        ),
        "test": TestFacts(
            loss=0.7,
            accuracy=50 / 60,
            confusion=[[15, 5, 0], [2, 18, 0], [1, 2, 17]],
            repeated=[],
            missing=[],
        ),
        "predicted": [0] * 60,
        "memory": MemoryFacts(plain=200, checkpointed=100),
        "run": RunFacts(
            device="cpu", backend="gloo", world_size=ranks, threads=1, cpus=2, precision="fp32", torch="2", gpus=[]
        ),
    }
    return ModeFacts(**{**values, **broken})
