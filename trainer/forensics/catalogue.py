"""Every known mistake with its explanation and the smallest fix; traces and gradient audits use the same names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SUM: Final = (
    "Add the losses up instead of averaging them (reduction='sum'), and divide by the number of targets of the whole "
    "window: loss * world_size / targets of all ranks and micro-batches."
)


@dataclass(frozen=True, slots=True)
class Mistake:
    """What a mistake does, and what ends it; `{unit}` stands for what the objective counts."""

    explanation: str
    fix: str


SHAPES: Final[Mapping[str, Mistake]] = {
    "mean_of_means": Mistake(
        "Every micro-batch is averaged by itself, so a {unit} in a small micro-batch weighs more.", SUM
    ),
    "rank_mean": Mistake(
        "Every rank averages over its own {unit}s, so a {unit} on a rank with few of them weighs more.",
        "Divide by the number of targets on all ranks: all-reduce the counts (sum), then loss * world_size / count.",
    ),
    "microbatch_denominator": Mistake(
        "Every micro-batch is divided by its own count over all ranks instead of that of the window.",
        "Count the targets of the whole window before its first backward, and divide every micro-batch by that number.",
    ),
    "dropped_microbatch": Mistake(
        "Some micro-batches weigh nothing: their gradients were cleared before the step, their loss was made 0, or "
        "their window was left out.",
        "Clear the gradients once per step, after optimizer.step(), not before every backward, and leave no window "
        "out.",
    ),
}
"""Mistakes that make the weights of a window uneven."""
SCALES: Final[Mapping[str, Mistake]] = {
    "missing_world_size": Mistake(
        "The loss is divided by the count of all ranks, and the engine then averages over the ranks again.",
        "Multiply the loss by the world size, which the averaging divides by.",
    ),
    "extra_world_size": Mistake(
        "Gradients are world_size times too large: the loss is multiplied by the world size although nothing else "
        "divides by it, or a communication hook or own reduction adds up and does not divide.",
        "Remove the factor world_size from the loss, or divide by it in the hook or reduction.",
    ),
    "extra_accumulation_division": Mistake(
        "The loss is divided by the number of micro-batches once more than it should be.",
        "Divide by the number of micro-batches once, or not at all where the divisor covers the whole window.",
    ),
    "missing_accumulation_division": Mistake(
        "Means of several micro-batches are added up without being divided by their number.",
        "Divide the loss of every micro-batch by the number of micro-batches of the window.",
    ),
    "local_count_as_global": Mistake(
        "The divisor holds the count of one rank where that of all ranks belongs.",
        "Divide by the count of all ranks: all-reduce the counts (sum), then loss * world_size / count.",
    ),
}
"""Mistakes that multiply all weights of a window by the same factor."""
OTHERS: Final[Mapping[str, Mistake]] = {
    "short_last_window": Mistake(
        "A window has fewer micro-batches than the number it is divided by.",
        "Divide by the number of micro-batches that the window really has, or drop the incomplete window.",
    ),
    "padding_in_denominator": Mistake(
        "Padding is counted in the divisor, so every {unit} weighs less, and the more padding a batch has, the less.",
        "Count only supervised {unit}s: labels that are not the ignore index.",
    ),
    "padding_in_loss": Mistake(
        "Padding is part of the loss: its gradient is in the sum.",
        "Give padding the ignore index as its label, or multiply the loss of every {unit} by its mask.",
    ),
    "unsynchronised_step": Mistake(
        "Gradients are not reduced: every rank has only those of its own micro-batches.",
        "Call the wrapped model, not model.module, and run the window's last forward and backward outside no_sync().",
    ),
    "sync_on_wrong_microbatch": Mistake(
        "The reduction takes place before the window's last backward; what comes after it stays on its own rank.",
        "Run every micro-batch but the last inside no_sync(), and the last one outside.",
    ),
    "extra_syncs": Mistake(
        "Gradients are reduced more than once per window. The result is right, but communication is wasted.",
        "Run forward and backward of every micro-batch but the last inside no_sync(): the forward decides.",
    ),
    "stale_gradients": Mistake(
        "The gradient of the previous step is still in the sum.",
        "Clear the gradients after every optimizer.step().",
    ),
    "repeated_samples": Mistake(
        "The same {unit}s enter the gradient more than once.",
        "Give every rank and micro-batch its own samples: shard the data once, and do not pad it by repeating.",
    ),
    "batch_statistics": Mistake(
        "The difference is not a weighting: layers in training mode use statistics of their batch, so the gradient of "
        "a {unit} depends on what else is in its batch. No divisor can restore parity.",
        "Compare in eval mode, or use a layer without batch statistics, such as GroupNorm.",
    ),
    "unreduced_parameters": Mistake(
        "Some parameters are not reduced: their gradients hold only the rank's own micro-batches.",
        "Create, replace and unfreeze parameters before wrapping the model, or wrap it again; an own reduction must "
        "include every parameter.",
    ),
    "buffers_moved_twice": Mistake(
        "Buffers moved twice per micro-batch, although the gradients agree: the forward of these layers runs twice, as "
        "with activation checkpointing.",
        "Keep these layers out of the checkpointed part, or use a layer without running statistics.",
    ),
    "clipped_before_unscale": Mistake(
        "Gradients are clipped while they are still multiplied by the loss scale, so nearly every step is shrunk to "
        "the same tiny norm.",
        "Call scaler.unscale_(optimizer) before clipping.",
    ),
    "clipped_gradients": Mistake(
        "Gradients are clipped: the factor changes from step to step, and the norm is the same constant. This is not a "
        "weighting fault, but it hides any constant factor.",
        "Leave the clipping out of the code under audit, or clip after the gradients are read.",
    ),
    "clipped_inside_window": Mistake(
        "Gradients are clipped between the backward passes of a window: what is already there shrinks again and "
        "again, so early micro-batches weigh less, and ranks clip by different factors.",
        "Clip once per step, after the last backward and its reduction, just before optimizer.step().",
    ),
    "scaled_inside_window": Mistake(
        "Gradients are multiplied between the backward passes of a window, so what is already there is scaled again.",
        "Scale the loss of every micro-batch, or the gradients once after the last backward.",
    ),
    "auxiliary_loss_weight": Mistake(
        "The auxiliary loss does not enter the gradient with the weight that the target states.",
        "Divide the auxiliary loss as extra_reduction says, or state the reduction that is meant.",
    ),
}
KNOWN: Final[Mapping[str, Mistake]] = {**SHAPES, **SCALES, **OTHERS}
