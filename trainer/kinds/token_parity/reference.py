"""Stage `reference`: the gradient of the whole window in one process, without DDP, from the same initial weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.common.context import StageContext
from trainer.common.distributed import process_group
from trainer.common.window import gradients
from trainer.kinds.token_parity.handover import AUDITED, EMPTY_RANK, LOCALLY_EMPTY, Handover
from trainer.tokens.batches import Batch, loss_sum, make_batch, without_targets
from trainer.tokens.corpus import build_corpus
from trainer.tokens.model import TokenModel, build_model, weights_digest
from trainer.tokens.plan import PlanShape, Window, WindowSampler


def run(context: StageContext) -> None:
    """Write the reference gradients of the full and of the locally empty window."""
    with process_group(context) as group:
        shape = context.params.shape
        batches = window_batches(WindowSampler(shape).next_window(), shape, group.device)
        model = build_model(shape.seed).to(group.device)
        windows = {AUDITED: batches, LOCALLY_EMPTY: with_empty_rank(batches)}
        content: dict[str, object] = {"weights": weights_digest(model)}
        for done, (name, cells) in enumerate(windows.items(), start=1):
            group.telemetry.phase(f"reference-{name}".replace("_", "-"), 0)
            content[name], content[f"{name}_sums"] = reference_gradient(model, cells)
            group.telemetry.progress(done, len(windows), "windows")
        torch.save(content, Handover(context.paths).reference)


def window_batches(window: Window, shape: PlanShape, device: torch.device) -> list[list[Batch]]:
    """Return the window's micro-batches as batches[rank][micro-batch]."""
    corpus = build_corpus(shape.seed, shape.world_size)
    return [[make_batch([corpus.sequence(item) for item in ids], device) for ids in row] for row in window]


def with_empty_rank(batches: Sequence[Sequence[Batch]]) -> list[list[Batch]]:
    """Return the window with all targets of one rank ignored."""
    return [
        [without_targets(batch) for batch in row] if rank == EMPTY_RANK else list(row)
        for rank, row in enumerate(batches)
    ]


def reference_gradient(
    model: TokenModel, batches: Sequence[Sequence[Batch]]
) -> tuple[dict[str, Tensor], list[list[float]]]:
    """Return the gradient of (sum of all losses) / (number of all tokens), and the loss sums per rank and micro-batch.

    Computed directly from the objective: it shares no code with the rules that are compared with it.
    """
    tokens = sum(batch.tokens for row in batches for batch in row)
    model.zero_grad(set_to_none=True)
    sums: list[list[float]] = []
    for row in batches:
        sums.append([])
        for batch in row:
            total = loss_sum(model, batch)
            (total / tokens).backward()  # type: ignore[no-untyped-call]
            sums[-1].append(float(total.item()))
    return gradients(model), sums
