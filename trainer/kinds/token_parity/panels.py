"""The panels of a token-parity run."""

import math
from fractions import Fraction
from typing import Any

from trainer.common.rank_devices import devices_panel
from trainer.contract.events import encode_number
from trainer.contract.normalisation import Number, correct, mean_of_means, rank_mean, token_weights
from trainer.contract.result import (
    HeatPanel,
    HistogramGroup,
    HistogramPanel,
    Line,
    Panel,
    SeriesPanel,
    TablePanel,
)
from trainer.kinds.token_parity.comparison import EDGES
from trainer.kinds.token_parity.evidence import Evidence
from trainer.tokens.corpus import SYMBOLS

CHANCE_ACCURACY, CHANCE_LOSS = 1 / SYMBOLS, math.log(SYMBOLS)
CELLS_SHOWN = 256
ERRORS_TITLE = "Absolute gradient errors, audited rule and negative control"
SIGNED_TITLE = "Same loss, different gradient"
EXPLAINS = {"same_loss_different_gradient": SIGNED_TITLE}
"""Panels by the check they explain; the distribution of errors explains all other checks."""


def build_panels(evidence: Evidence) -> list[Panel]:
    """Return every panel in page order."""
    panels: list[Panel] = [
        tensor_errors(evidence),
        error_histogram(evidence),
        token_counts(evidence),
        weights_per_cell(evidence),
        both_formulas(evidence),
        worked_example(evidence),
        signed_example(evidence),
        rank_devices(evidence),
    ]
    return panels + (training_panels(evidence) if evidence.training is not None else [])


def tensor_errors(evidence: Evidence) -> TablePanel:
    """Errors per parameter tensor, correct rule and control."""
    wrong = {tensor.name: tensor for tensor in evidence.rank_mean.tensors}
    return TablePanel(
        title="Gradient error per parameter tensor",
        note="Worst over ranks. A share above 1 is outside the tolerance. The last two columns show the wrong rule.",
        columns=[
            *("Tensor", "Components", "Largest error", "Share of tolerance", "Outside"),
            *("Largest error, rank means", "Outside, rank means"),
        ],
        rows=[
            [
                tensor.name,
                tensor.components,
                encode_number(tensor.max_abs_error),
                encode_number(tensor.share),
                tensor.outside,
                encode_number(wrong[tensor.name].max_abs_error),
                wrong[tensor.name].outside,
            ]
            for tensor in evidence.audited.tensors
        ],
    )


def error_histogram(evidence: Evidence) -> HistogramPanel:
    """Distribution of component errors, correct rule and control side by side."""
    return HistogramPanel(
        title=ERRORS_TITLE,
        note=(
            "The correct rule leaves only rounding errors, far to the left of the wrong rule's errors. "
            "Each component's worst error over ranks; the first bin contains all smaller errors, including zeros."
        ),
        edges=list(EDGES),
        log_x=True,
        x_label="|g - reference|",
        groups=[
            HistogramGroup(name=f"audited rule ({evidence.params.variant})", counts=evidence.audited.histogram),
            HistogramGroup(name="negative control (rank means)", counts=evidence.rank_mean.histogram),
        ],
    )


def token_counts(evidence: Evidence) -> HeatPanel:
    """Supervised tokens per rank and micro-batch."""
    counts = evidence.plan["token_counts"]
    return HeatPanel(
        title="Supervised tokens per rank and micro-batch",
        note=f"{evidence.plan['global_tokens']} in the window. Padding has no target and is not counted.",
        rows=[f"rank {rank}" for rank in range(len(counts))],
        columns=[f"micro-batch {place}" for place in range(len(counts[0]))],
        values=counts,
    )


def weights_per_cell(evidence: Evidence) -> TablePanel:
    """The weight of one token under each rule."""
    rows: list[list[Any]] = []
    weights = token_weights(evidence.measured_window)
    for rank, cells in enumerate(evidence.measured_window):
        for place, cell in enumerate(cells):
            right, by_rank, by_cell = weights[rank][place]
            rows.append([rank, place, cell.tokens, *map(float, (right, by_rank, by_cell, by_rank / right))])
    note = "Under the correct rule every token has weight 1 / N, whichever rank holds it."
    if len(rows) > CELLS_SHOWN:
        note += f" The first {CELLS_SHOWN} of {len(rows)} cells."
    return TablePanel(
        title="Weight of one token under each rule",
        note=note,
        columns=[
            *("Rank", "Micro-batch", "Tokens", "Weight, correct rule", "Weight, rank means"),
            *("Weight, mean of means", "Rank means / correct"),
        ],
        rows=rows[:CELLS_SHOWN],
    )


def both_formulas(evidence: Evidence) -> TablePanel:
    """The formulas applied to the measured sums and counts."""
    window = evidence.measured_window
    rows: list[list[Any]] = [
        [f"rank {rank}: mean of its own tokens", *_sums(cells), _number(_total(cells) / _tokens(cells))]
        for rank, cells in enumerate(window)
    ]
    everything = [cell for cells in window for cell in cells]
    rows += [
        ["wrong: mean of the rank means", None, None, _number(rank_mean(window))],
        ["wrong: mean of all micro-batch means", None, None, _number(mean_of_means(window))],
        ["correct: sum of sums / sum of counts", *_sums(everything), _number(correct(window))],
    ]
    return TablePanel(
        title="Both formulas with the measured sums and counts",
        note="Loss in nats at the initial weights. The distance between the losses says nothing about the gradients.",
        columns=["Formula", "Tokens", "Loss sum", "Loss per token"],
        rows=rows,
    )


def worked_example(evidence: Evidence) -> TablePanel:
    """The worked example."""
    return TablePanel(
        title="Worked example",
        note="12 and 36 tokens with loss sums 12 and 108, in exact fractions.",
        columns=["Statement", "By hand", "Exact", "Value", "Holds"],
        rows=[
            [line["title"], line["formula"], line["exact"], line["actual"], line["actual"] == line["expected"]]
            for line in evidence.worked_example
        ],
    )


def signed_example(evidence: Evidence) -> TablePanel:
    """Equal losses and different gradients, measured with DDP."""
    signed = evidence.reports[0]["signed"]
    names = {"correct": "correct: over all tokens", "rank_mean": "wrong: mean of the rank means"}
    return TablePanel(
        title=SIGNED_TITLE,
        note="One parameter at 0; 12 targets +1 on rank 0, 36 targets -1 on rank 1; squared error, with real DDP.",
        columns=["Rule", "Reported loss", "Gradient of the parameter"],
        rows=[[title, signed[rule]["loss"], signed[rule]["gradient"]] for rule, title in names.items()],
    )


def rank_devices(evidence: Evidence) -> TablePanel:
    """The device of every rank and its communication time."""
    return devices_panel(
        evidence.reports,
        "Communication in the audited window (s)",
        lambda report: report["windows"]["audited"]["communication_seconds"],
        note="Communication: from the call of the hook to the completed reduction, including waiting for slower ranks.",
    )


def training_panels(evidence: Evidence) -> list[Panel]:
    """Loss over updates, and the evaluation."""
    training = evidence.training or {}
    history = training["history"]
    lines = [
        Line(name="training loss per token", y=[encode_number(row["loss"]) for row in history]),
        Line(name="validation loss per token", y=[encode_number(row.get("validation")) for row in history]),
        Line(name="chance (ln 4)", y=[CHANCE_LOSS] * len(history)),
    ]
    return [
        SeriesPanel(
            title="Loss per token over updates",
            note="Sum over all ranks divided by the summed token count.",
            x=[row["step"] for row in history],
            x_label="updates",
            y_label="nats",
            lines=lines,
        ),
        TablePanel(
            title="Evaluation",
            note="Accuracy per token, not per sequence. No measure of model quality: the sequences are generated.",
            columns=["Set", "Loss per token", "Token accuracy", "Tokens"],
            rows=[
                *(
                    [name, *(training[name][key] for key in ("loss_per_token", "token_accuracy", "tokens"))]
                    for name in ("test", "validation")
                ),
                ["chance", CHANCE_LOSS, CHANCE_ACCURACY, None],
            ],
        ),
    ]


def _tokens(cells: Any) -> int:
    return sum(cell.tokens for cell in cells)


def _total(cells: Any) -> float:
    return math.fsum(cell.total for cell in cells)


def _sums(cells: Any) -> tuple[int, float]:
    return _tokens(cells), _total(cells)


def _number(value: Number) -> Any:
    return encode_number(float(value) if isinstance(value, Fraction) else value)
