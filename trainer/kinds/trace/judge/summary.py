"""The summary of a judged trace: windows with the weight of one unit per cell."""

from collections.abc import Sequence
from typing import Any

from trainer.contract.events import encode_number
from trainer.kinds.trace.judge.runs import Run
from trainer.kinds.trace.judge.synchronisations import of_window
from trainer.kinds.trace.judge.verdicts import Understanding
from trainer.kinds.trace.judge.weighing import Weighed

MOST_CELLS = 20_000
"""Of all windows together."""


def windows(run: Run, understood: Sequence[tuple[int, Understanding]]) -> list[dict[str, Any]]:
    """Return the windows that were looked at, by optimizer and step, as many as there is room for."""
    found: list[dict[str, Any]] = []
    left = MOST_CELLS
    shown: set[int] = set()
    for number, item in understood:
        if number in shown:
            continue  # another loss of the same windows
        shown.add(number)
        for one in item.weighed:
            left -= len(one.window.cells)
            if left < 0:
                return found
            document = _window(run, one)
            found.append({**document, "optimizer": number} if len(run.steps) > 1 else document)
    return found


def _window(run: Run, one: Weighed) -> dict[str, Any]:
    syncs = [of_window(run, record).count for record in one.step.ranks.values()]
    return {
        "epoch": run.epochs.of(one.step),
        "step": one.step.step,
        "cells": [
            {
                "rank": cell.rank,
                "micro_batch": cell.micro_batch,
                "units": int(cell.units) if float(cell.units).is_integer() else cell.units,
                "weight": encode_number(cell.weight) if cell.units > 0 else None,
            }
            for cell in one.window.cells
        ],
        "syncs": max(syncs, default=0),
        "micro_batches": one.step.micro_batches,
    }
