"""Stage `train-<mode>`: trains one mode on all ranks, scores it on the test images, stores the facts for the audit."""

from dataclasses import replace
from pathlib import Path

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.store import CheckpointStore
from trainer.common.context import StageContext
from trainer.common.continuation import KEEP, Continuation
from trainer.common.distributed import Group, process_group
from trainer.common.machine import usable_cpus
from trainer.common.model_file import save_model
from trainer.common.sync_counter import SyncCounter
from trainer.common.witness import ProfilerWitness, gradient_bytes
from trainer.contract.exits import EXIT_PREEMPTED
from trainer.contract.files import make_folder
from trainer.kinds.cifar.audit.artifacts import ModeArtifacts
from trainer.kinds.cifar.data.images import ImageSplit
from trainer.kinds.cifar.data.split import DataCard, PreparedData, SplitName
from trainer.kinds.cifar.facts import MemoryFacts, ModeFacts, RunFacts, StartFacts, TestFacts
from trainer.kinds.cifar.params import CifarParams
from trainer.kinds.cifar.train.loop import Training
from trainer.kinds.cifar.train.precision import agreed_precision
from trainer.kinds.cifar.train.scoring import score
from trainer.kinds.cifar.train.setup import (
    build_network,
    build_optimizer,
    describe_determinism,
    describe_optimizer,
    measure_memory,
    state_digest,
    wrap,
)
from trainer.kinds.cifar.train.window_step import WindowStep


def run(context: StageContext) -> int:
    """Train the mode in `context.arguments`, and return the exit code of this rank."""
    mode = str(context.arguments["mode"])
    card = PreparedData(context.paths).card()
    with process_group(context) as group:
        training = build_training(context.params, group, context=context, card=card, mode=mode)
        network = training.step.model.module
        weights = state_digest(network)
        memory = _memory(training, group)
        with _continuation(context, group, training, card, mode) as continuation:
            restored = continuation.restore()
            if restored is not None:
                training.restore(restored.sampler)
            if not training.run(continuation):
                return EXIT_PREEMPTED
        facts = conclude(context, training, card, mode, weights=weights, memory=memory)
        if group.rank == 0:
            artifacts = ModeArtifacts(context.paths, mode)
            make_folder(artifacts.root, within=context.paths.root)
            save_model(artifacts.model, network, classes=card.classes, seed=context.params.seed)
            facts.save(context.paths)
        group.barrier("facts written")
    return 0


def build_training(params: CifarParams, group: Group, *, context: StageContext, card: DataCard, mode: str) -> Training:
    """Return one rank's training of `mode`, ready to start."""
    precision = agreed_precision(params.precision, group)
    network = build_network(params, len(card.classes), group.device)
    model = wrap(network, group, params.bucket_cap_mb)
    counter = SyncCounter(group.telemetry)
    counter.attach(model)
    optimizer = build_optimizer(params, network)
    traces = {"traces": ModeArtifacts(context.paths, mode).traces, "within": context.paths.root}
    return Training(
        params=params,
        group=group,
        classes=len(card.classes),
        step=WindowStep(
            model=model,
            optimizer=optimizer,
            telemetry=group.telemetry,
            mode=mode,
            precision=precision,
            device=group.device,
        ),
        counter=counter,
        witness=ProfilerWitness(network, backend=group.backend, **traces) if group.rank == 0 else None,
        scheduler=CosineAnnealingLR(optimizer, T_max=params.epochs),
        train=_split(context, "train", group),
        validation=_split(context, "validation", group),
        generator=torch.Generator().manual_seed(params.seed + group.rank),
    )


def _split(context: StageContext, name: SplitName, group: Group) -> ImageSplit:
    return ImageSplit(*PreparedData(context.paths).read(name), group.device)


def _memory(training: Training, group: Group) -> MemoryFacts:
    measured = None
    if group.rank == 0:
        group.telemetry.phase("measure memory", 0)
        network = training.step.model.module
        measured = measure_memory(network, training.params.batch_size, training.step.precision)
    memory: MemoryFacts = group.broadcast_object(measured, what="memory of rank 0")
    return memory


def _continuation(context: StageContext, group: Group, training: Training, card: DataCard, mode: str) -> Continuation:
    identity = trajectory(context, card, mode)
    root = _checkpoints(context)
    store = CheckpointStore(root, identity, keep=KEEP, telemetry=group.telemetry, run_root=context.paths.root)
    return Continuation(context=context, group=group, store=store, state=training.state, last=training.total_steps)


def trajectory(context: StageContext, card: DataCard, mode: str) -> Identity:
    """Return what a checkpoint must match: in a run of both modes, each mode is a separate trajectory."""
    identity = Identity.of(context, card.digest)
    return replace(identity, config={**identity.config, "mode": mode})


def _checkpoints(context: StageContext) -> Path:
    only_one = len(context.params.modes) == 1
    return context.paths.checkpoints(None if only_one else context.stage)


def _start(training: Training, group: Group, weights: str, card: DataCard) -> StartFacts:
    everyone = group.gather_objects({"weights": weights, **training.draws.as_json()}, "digests of the start")
    return StartFacts(
        weights=[item["weights"] for item in everyone],
        ids=[item["ids"] for item in everyone],
        views=[item["views"] for item in everyone],
        optimizer=describe_optimizer(training.step.optimizer),
        determinism=describe_determinism(),
        data_lock=card.digest,
    )


def conclude(
    context: StageContext, training: Training, card: DataCard, mode: str, *, weights: str, memory: MemoryFacts
) -> ModeFacts:
    """Score the trained network on the test images and return everything that was counted. Collective."""
    group, network = training.group, training.step.model.module
    group.telemetry.phase("test", training.done)
    test = score(network, _split(context, "test", group), group, classes=len(card.classes), precision="fp32")
    return ModeFacts(
        mode=mode,
        parameters=sum(item.numel() for item in network.parameters()),
        gradient_bytes=gradient_bytes(network),
        epochs=training.epochs,
        windows=training.windows,
        start=_start(training, group, weights, card),
        test=TestFacts(
            loss=test.loss,
            accuracy=test.accuracy,
            confusion=test.confusion,
            repeated=test.repeated,
            missing=test.missing,
        ),
        predicted=test.predicted,
        memory=memory,
        run=_run_facts(group, training.step.precision),
    )


def _run_facts(group: Group, precision: str) -> RunFacts:
    cuda = group.device.type == "cuda"
    return RunFacts(
        device=group.device.type,
        backend=group.backend,
        world_size=group.world_size,
        threads=torch.get_num_threads(),
        cpus=usable_cpus(),
        precision=precision,
        torch=torch.__version__,
        gpus=[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if cuda else [],
    )
