"""The same steps again, with the gradient of every part of every window: what a diagnosis starts from.

In float64, or in the run's own type if the code does not run in float64 or if float64 shows nothing wrong.
"""

import gc
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainer.common.context import StageContext
from trainer.common.distributed import Group
from trainer.forensics.sketch import Sketch
from trainer.kinds.gradient_audit.engine import Engine, Keep, fresh_model
from trainer.kinds.gradient_audit.handover import Handover, read_document
from trainer.kinds.gradient_audit.inspection import dtype_of
from trainer.kinds.gradient_audit.objective import Cell, buffers_of, cell_gradient, set_buffers
from trainer.kinds.gradient_audit.reference import descend
from trainer.kinds.gradient_audit.seeding import seed_everything
from trainer.kinds.gradient_audit.windows import own_cells
from trainer.targets.members import Target, TargetFault

PRECISE: Final = torch.float64
FEWEST_BUCKETS: Final = 512
BUCKETS_PER_CELL: Final = 16
"""Of the sketch of a parameter: more than there are parts of a window."""
SAME: Final = 1e-4
"""Distance of a parameter's gradient from the reference that is rounding, as a share of its length."""
FLOOR: Final = 1e-6
"""The same as a share of the whole gradient's length: a parameter whose gradient should be 0 has only rounding."""
Steps = list[Any]
"""One item per step."""
OTHER_TYPE: Final = re.compile(r"dtype|scalar type|Double|Float|float64")
"""In the message of code that does not run in another type than its usual one."""


def replay(
    context: StageContext, group: Group, target: Target, state: Mapping[str, Tensor], *, steps: int, is_wrong: bool
) -> None:
    """Run the first `steps` steps again and write this rank's evidence. Collective. Raises TargetFault.

    `is_wrong`: whether a gradient did not match in the audit itself, on any rank.
    """
    group.telemetry.phase("evidence", 0)
    own, in_float64 = dtype_of(context.params), False
    for dtype in dict.fromkeys((PRECISE, own)):
        again = Replay(context, group, target, dtype)
        parts, error = again.tried(partial(again.parts, state, steps), last=dtype == own)
        # Before any rank waits for another one in the code under audit.
        if any(group.gather_objects(error, "precision of the evidence")) or parts is None:
            continue
        gc.collect()
        rows, error = again.tried(partial(again.observed, state, steps), last=dtype == own)
        if any(group.gather_objects(error, "precision of the evidence")) or rows is None:
            continue
        found = [{**row, "parts": part} for row, part in zip(rows, parts, strict=True)]
        document = {"dtype": str(dtype).removeprefix("torch."), "in_float64": in_float64, "steps": found}
        handover = Handover(context.paths)
        handover.save(handover.evidence(group.rank), document)
        if dtype == own or not is_wrong:
            return
        if not all(group.gather_objects(again.matches(rows), "gradients of the evidence")):
            return
        in_float64 = True  # nothing is wrong there, so the cause can only be seen in the run's own type


class Replay:
    """The steps on one rank, in one type: first the parts of the windows, then the code under audit."""

    def __init__(self, context: StageContext, group: Group, target: Target, dtype: torch.dtype) -> None:
        self._group, self._target, self._dtype = group, target, dtype
        self._seed = context.params.seed
        self._handover = Handover(context.paths)
        self._windows = read_document(self._handover.inspection)["windows"]
        self._facts = read_document(self._handover.facts)["steps"]
        cells = max(sum(map(len, known["count"])) for known in self._windows)
        self._sketch = Sketch(buckets=max(FEWEST_BUCKETS, BUCKETS_PER_CELL * cells))

    def tried(self, run: Callable[[], Steps], *, last: bool) -> tuple[Steps | None, str]:
        """Return what `run` returns, or why the target does not run in this type. Raises any other TargetFault."""
        try:
            return run(), ""
        except TargetFault as error:
            if last or not OTHER_TYPE.search(str(error)):
                raise
            return None, str(error)

    def parts(self, state: Mapping[str, Tensor], count: int) -> list[list[dict[str, Any]]]:
        """Return the gradients of this rank's parts of every step, on a plain copy of the model."""
        seed_everything(self._seed)
        plain, found = fresh_model(self._target, self._group, state, self._dtype), []
        for step, known in enumerate(self._windows[:count]):
            cells = own_cells(self._target, self._group, known, step, self._dtype)
            found.append([part for cell in cells for part in self._parts(plain, cell, known, step)])
            descend(plain, self._reference(step), self._facts[step]["rates"])
        return found

    def observed(self, state: Mapping[str, Tensor], count: int) -> list[dict[str, Any]]:
        """Return what the code under audit leaves in every step. Collective."""
        seed_everything(self._seed)
        engine, found = Engine(self._target, self._group, state, self._dtype), []
        engine.watch_changes()
        for step, known in enumerate(self._windows[:count]):
            cells = own_cells(self._target, self._group, known, step, self._dtype)
            norms: list[float] = []
            seen = engine.run([cell.batch for cell in cells], step, self._keep(norms))
            found.append(
                {
                    "step": step,
                    "observed": seen.gradients,
                    "norm": math.hypot(*norms),
                    "changes": seen.changes,
                    "backwards": seen.backwards,
                    "reductions": seen.reductions,
                }
            )
            if step + 1 < count:
                engine.step(self._reference(step), self._facts[step]["rates"])
        return found

    def matches(self, rows: Steps) -> bool:
        """Return whether this rank's gradients are the reference in every step, apart from rounding."""
        return all(self._matches(row["observed"], self._sketch.of(self._reference(row["step"]))) for row in rows)

    def _matches(self, observed: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
        length = {name: float(torch.linalg.vector_norm(value)) for name, value in expected.items()}
        floor = FLOOR * math.hypot(*length.values())
        apart = {name: float(torch.linalg.vector_norm(observed[name] - value)) for name, value in expected.items()}
        return all(apart[name] <= SAME * length[name] + floor for name in expected)

    def _reference(self, step: int) -> dict[str, Tensor]:
        found: dict[str, Tensor] = torch.load(self._handover.reference(step), weights_only=True)
        return found

    def _keep(self, norms: list[float]) -> Keep:
        """Return what sketches a gradient and notes its norm, so that no whole gradient is copied."""

        def keep(name: str, gradient: Tensor) -> Tensor:
            norms.append(float(torch.linalg.vector_norm(gradient.double())))
            return self._sketch.tensor(name, gradient)

        return keep

    def _parts(self, plain: nn.Module, cell: Cell, known: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
        rank, place = cell.rank, cell.place
        padding = known["padding"][rank][place]
        common = {"rank": rank, "micro_batch": place, "padding": padding, "digest": known["digest"][rank][place]}
        members = {"units": ("loss_sum", cell.count)}
        if self._target.has("padding_loss_sum") and padding:
            members["padding"] = ("padding_loss_sum", padding)
        if self._target.has("extra_loss"):
            members["extra"] = ("extra_loss", 1.0)
        start, found = buffers_of(plain), []
        after: dict[str, Tensor] = {}
        for kind, (member, units) in members.items():
            set_buffers(plain, start)
            _, gradient = cell_gradient(self._target, plain, cell, member, step)
            after = after or buffers_of(plain)
            found.append({**common, "kind": kind, "units": units, "gradient": self._sketch.of(gradient)})
        set_buffers(plain, after)
        return found
