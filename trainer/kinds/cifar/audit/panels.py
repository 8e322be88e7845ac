"""Tables, curves and images of a result, built only from the facts."""

from collections.abc import Callable, Sequence

from trainer.contract.result import (
    BarGroup,
    BarsPanel,
    ConfusionPanel,
    ImageItem,
    ImagesPanel,
    Line,
    Panel,
    SeriesPanel,
    TablePanel,
)
from trainer.kinds.cifar.audit.artifacts import top_confusions
from trainer.kinds.cifar.audit.checks import cells, mode_of
from trainer.kinds.cifar.audit.pair_checks import STARTS
from trainer.kinds.cifar.audit.witness_check import comparisons, sampled_share
from trainer.kinds.cifar.facts import EpochFacts, ModeFacts
from trainer.kinds.cifar.params import CifarParams

SYNCS_TITLE = "Gradient synchronisations per epoch, expected and counted"
WITNESS_TITLE = "Synchronisations counted by hook and profiler"
START_TITLE = "Digests of weights and draws"
EXPLAINS = {"sync_witness": WITNESS_TITLE, "same_start": START_TITLE}
"""Panels by the check they explain; the synchronisation counts explain all other checks."""
EPOCH_COLUMNS = [
    "mode",
    "epoch",
    "optimizer steps",
    "syncs expected",
    "syncs counted",
    "train loss",
    "train accuracy",
    "validation loss",
    "validation accuracy",
    "seconds",
]


def panels(
    params: CifarParams, modes: Sequence[ModeFacts], classes: Sequence[str], baseline: tuple[str, float]
) -> list[Panel]:
    """Return every panel but the images, which need files."""
    found: list[Panel] = [
        sync_bars(params, modes),
        audit_table(params, modes),
        score_table(modes, baseline),
        epoch_table(params, modes),
        _curve("Loss", "mean cross-entropy, nats", modes, lambda e: e.train_loss, lambda e: e.validation_loss),
        _curve("Accuracy", "share of images", modes, lambda e: e.train_accuracy, lambda e: e.validation_accuracy),
        *(confusion_panel(facts, classes) for facts in modes),
        confusion_table(modes, classes),
        *communication_bars(modes),
        witness_table(params, modes),
        memory_bars(params, modes),
    ]
    if len(modes) > 1:
        found.append(start_table(modes))
    return found


def sync_bars(params: CifarParams, modes: Sequence[ModeFacts]) -> BarsPanel:
    """Return the chart that explains the verdict: how often each mode should have synchronised, and did."""
    counts = [cells(facts, "gradient_syncs", params.syncs_per_epoch(mode_of(facts))) for facts in modes]
    return BarsPanel(
        title=SYNCS_TITLE,
        note=(
            f"Equal bars pass. Mode every reduces after each of the {params.accum_steps} micro-batches of a window, "
            "no_sync once per window. Counted: the count furthest from the expected number, of all epochs and ranks."
        ),
        unit="synchronisations",
        labels=[facts.mode for facts in modes],
        groups=[
            BarGroup(name="expected", values=[found[0].expected for found in counts]),
            BarGroup(name="counted", values=[max(found, key=lambda cell: cell.off).counted for found in counts]),
        ],
    )


def audit_table(params: CifarParams, modes: Sequence[ModeFacts]) -> TablePanel:
    """Return the main table: what each mode did per epoch."""
    return TablePanel(
        title="Audit",
        note=(
            f"A synchronisation is one completed gradient reduction of the whole model, regardless of the number of "
            f"buckets. Window: {params.accum_steps} micro-batches of {params.batch_size} images on each of "
            f"{params.world_size} ranks."
        ),
        columns=["mode", "optimizer steps per epoch", "syncs per epoch", "syncs expected", "test accuracy"],
        rows=[
            [
                facts.mode,
                facts.epochs[-1].optimizer_steps[0],
                facts.epochs[-1].gradient_syncs[0],
                params.syncs_per_epoch(mode_of(facts)),
                facts.test.accuracy,
            ]
            for facts in modes
        ],
    )


def score_table(modes: Sequence[ModeFacts], baseline: tuple[str, float]) -> TablePanel:
    """Return the test scores of each mode next to the baseline."""
    rows: list[list[object]] = [[facts.mode, facts.test.loss, facts.test.accuracy] for facts in modes]
    return TablePanel(
        title="Test result and baseline",
        note=(
            "Baseline: always predict the most frequent class of the training split. Model: rank 0's weights and "
            "BatchNorm statistics, in FP32. Loss is the mean cross-entropy in nats."
        ),
        columns=["model", "test loss", "test accuracy"],
        rows=[*rows, [f"baseline: always {baseline[0]}", None, baseline[1]]],
    )


def epoch_table(params: CifarParams, modes: Sequence[ModeFacts]) -> TablePanel:
    """Return steps, synchronisations, losses and accuracies of every epoch and mode."""
    return TablePanel(
        title="Epochs",
        columns=EPOCH_COLUMNS,
        rows=[
            [
                facts.mode,
                epoch.epoch,
                epoch.optimizer_steps[0],
                params.syncs_per_epoch(mode_of(facts)),
                epoch.gradient_syncs[0],
                epoch.train_loss,
                epoch.train_accuracy,
                epoch.validation_loss,
                epoch.validation_accuracy,
                epoch.seconds,
            ]
            for facts in modes
            for epoch in facts.epochs
        ],
    )


def _curve(
    title: str,
    unit: str,
    modes: Sequence[ModeFacts],
    train: Callable[[EpochFacts], float],
    validation: Callable[[EpochFacts], float],
) -> SeriesPanel:
    lines = []
    for facts in modes:
        lines.append(Line(name=f"{facts.mode}, train", y=[train(epoch) for epoch in facts.epochs]))
        lines.append(Line(name=f"{facts.mode}, validation", y=[validation(epoch) for epoch in facts.epochs]))
    return SeriesPanel(
        title=title,
        x=[epoch.epoch for epoch in modes[0].epochs],
        x_label="epoch",
        y_label=unit,
        lines=lines,
    )


def confusion_panel(facts: ModeFacts, classes: Sequence[str]) -> ConfusionPanel:
    """Return the confusion matrix of one mode."""
    return ConfusionPanel(
        title=f"Confusion matrix, mode {facts.mode}",
        note="Rows are true classes, columns are predicted classes; every test image counts once.",
        labels=list(classes),
        counts=facts.test.confusion,
        mode=facts.mode,
    )


def confusion_table(modes: Sequence[ModeFacts], classes: Sequence[str]) -> TablePanel:
    """Return the most frequent confusions of each mode, with their share of the true class."""
    rows: list[list[object]] = []
    for facts in modes:
        totals = dict(zip(classes, map(sum, facts.test.confusion), strict=True))
        for item in top_confusions(facts.test.confusion, classes):
            share = item["count"] / totals[item["true"]]
            rows.append([facts.mode, item["true"], item["predicted"], item["count"], f"{share:.1%}"])
    return TablePanel(
        title="Most frequent confusions",
        columns=["mode", "true class", "predicted as", "images", "share of the true class"],
        rows=rows,
    )


def communication_bars(modes: Sequence[ModeFacts]) -> list[BarsPanel]:
    """Return bytes reduced and time spent, per mode, as measured on rank 0."""
    labels = [facts.mode for facts in modes]
    reduced = [sum(epoch.reduced_bytes for epoch in facts.epochs) for facts in modes]
    return [
        BarsPanel(
            title="Gradient bytes reduced",
            note="Passed to the reduction by rank 0 over all epochs; the bytes on the network depend on the algorithm.",
            unit="bytes",
            labels=labels,
            groups=[BarGroup(name="bytes", values=list(reduced))],
        ),
        BarsPanel(
            title="Time",
            note=(
                "Wall time of rank 0's training loop, and the part of it with at least one active reduction, "
                "including waiting for other ranks and overlap with the backward pass. Sampled windows, which "
                "are slower under the profiler, are included. Fewer collectives do not guarantee a faster run."
            ),
            unit="seconds",
            labels=labels,
            groups=[
                BarGroup(name="training", values=[facts.seconds for facts in modes]),
                BarGroup(name="communication", values=[facts.communication_seconds for facts in modes]),
            ],
        ),
    ]


def witness_table(params: CifarParams, modes: Sequence[ModeFacts]) -> TablePanel:
    """Return the counts of hook and profiler in every sampled window."""
    return TablePanel(
        title=WITNESS_TITLE,
        note=(
            f"Sampled: the first three windows of the run and the first of each later epoch, "
            f"{sampled_share(params, modes):.1%} of all windows, on rank 0. The hook counts inside DDP; the profiler "
            "lists the backend's all-reduce events, matched by bytes against the model's gradients. The kept traces "
            "(artifacts/<mode>/traces) open in Perfetto."
        ),
        columns=["mode", "epoch", "step", "expected", "hook", "profiler", "all-reduce events", "bytes", "trace"],
        rows=[
            [
                item.mode,
                item.window.epoch,
                item.window.evidence.step + 1,
                item.expected,
                item.hook,
                item.profiler,
                item.window.evidence.events,
                item.window.evidence.size,
                item.window.evidence.trace,
            ]
            for item in comparisons(params, modes)
        ],
    )


def memory_bars(params: CifarParams, modes: Sequence[ModeFacts]) -> BarsPanel:
    """Return the peak memory of one micro-batch with and without activation checkpointing."""
    used = "on" if params.activation_checkpointing else "off"
    return BarsPanel(
        title="Peak memory of one micro-batch",
        note=(
            f"Forward and backward of {params.batch_size} images on rank 0, beyond weights and gradients, measured on "
            f"a copy of the network before training. Activation checkpointing was {used} here; counts do not change."
        ),
        unit="bytes",
        labels=[facts.mode for facts in modes],
        groups=[
            BarGroup(name="without activation checkpointing", values=[facts.memory.plain for facts in modes]),
            BarGroup(name="with activation checkpointing", values=[facts.memory.checkpointed for facts in modes]),
        ],
    )


def start_table(modes: Sequence[ModeFacts]) -> TablePanel:
    """Return the digests that must be equal in both modes, per rank where ranks differ."""
    rows: list[list[str]] = []
    for field, text in STARTS.items():
        values = [getattr(facts.start, field) for facts in modes]
        if isinstance(values[0], list):
            rows.extend(
                [f"{text}, rank {rank}", *(value[rank][:16] for value in values)] for rank in range(len(values[0]))
            )
        else:
            rows.append([text, *(value[:80] for value in values)])
    return TablePanel(
        title=START_TITLE,
        note="First characters of the SHA-256 digests of the initial weights and of everything drawn during the run.",
        columns=["what", *(facts.mode for facts in modes)],
        rows=rows,
    )


def images_panel(facts: ModeFacts, items: list[ImageItem]) -> ImagesPanel:
    """Return examples of the most frequent confusions of one mode."""
    return ImagesPanel(
        title=f"Examples of the most frequent confusions, mode {facts.mode}",
        note="Test images as the model sees them (32x32 pixels), enlarged.",
        items=items,
    )
