"""The same steps again in float64, with the gradient of every part of every window: what a diagnosis starts from."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from trainer.common.context import StageContext
from trainer.common.distributed import Group
from trainer.forensics.sketch import Sketch
from trainer.kinds.gradient_audit.engine import Engine, Keep, fresh_model, load, whole
from trainer.kinds.gradient_audit.handover import Handover, read_document
from trainer.kinds.gradient_audit.inspection import dtype_of
from trainer.kinds.gradient_audit.objective import Cell, buffers_of, cell_gradient, set_buffers
from trainer.kinds.gradient_audit.seeding import seed_everything
from trainer.kinds.gradient_audit.windows import own_cells
from trainer.targets.members import Target, TargetFault

PRECISE: Final = torch.float64
FEWEST_BUCKETS: Final = 512
BUCKETS_PER_CELL: Final = 16
"""Of the sketch of a parameter: more than there are parts of a window."""
OTHER_TYPE: Final = re.compile(r"dtype|scalar type|Double|Float|float64")
"""In the message of code that does not run in another type than its usual one."""


def replay(context: StageContext, group: Group, target: Target, state: Mapping[str, Tensor], *, steps: int) -> None:
    """Run the first `steps` steps again and write this rank's evidence. Collective. Raises TargetFault."""
    group.telemetry.phase("evidence", 0)
    dtypes = dict.fromkeys((PRECISE, dtype_of(context.params)))
    for dtype in dtypes:
        found, error = _attempt(context, group, target, state, dtype=dtype, steps=steps)
        errors = group.gather_objects(error, "precision of the evidence")
        if found is not None and not any(errors):
            handover = Handover(context.paths)
            handover.save(handover.evidence(group.rank), {"dtype": str(dtype).removeprefix("torch."), "steps": found})
            return
    raise TargetFault(next(error for error in errors if error))


def _attempt(
    context: StageContext, group: Group, target: Target, state: Mapping[str, Tensor], *, dtype: torch.dtype, steps: int
) -> tuple[list[dict[str, Any]] | None, str]:
    """Return the evidence of all steps, or why the code does not run in this type."""
    try:
        return Replay(context, group, target, state, dtype).steps(steps), ""
    except TargetFault as error:
        # Raised at the same place on every rank: no rank waits for another.
        if dtype == dtype_of(context.params) or not OTHER_TYPE.search(str(error)):
            raise
        return None, str(error)


class Replay:
    """All steps on one rank, in one type."""

    def __init__(
        self, context: StageContext, group: Group, target: Target, state: Mapping[str, Tensor], dtype: torch.dtype
    ) -> None:
        self._group, self._target, self._dtype = group, target, dtype
        self._handover = Handover(context.paths)
        self._windows = read_document(self._handover.inspection)["windows"]
        self._facts = read_document(self._handover.facts)["steps"]
        cells = max(sum(map(len, known["count"])) for known in self._windows)
        self._sketch = Sketch(buckets=max(FEWEST_BUCKETS, BUCKETS_PER_CELL * cells))
        seed_everything(context.params.seed)
        self._plain = fresh_model(target, group, state, dtype)
        cell_gradient(target, self._plain, own_cells(target, group, self._windows[0], 0, dtype)[0], "loss_sum", 0)
        load(target, self._plain, state, group.rank)
        self._engine = Engine(target, group, state, dtype)

    def steps(self, count: int) -> list[dict[str, Any]]:
        """Return the evidence of the first `count` steps."""
        found: list[dict[str, Any]] = []
        for step, known in enumerate(self._windows[:count]):
            cells = own_cells(self._target, self._group, known, step, self._dtype)
            parts = [part for cell in cells for part in self._parts(cell, known, step)]
            norms: list[float] = []
            observed = self._engine.run([cell.batch for cell in cells], step, self._keep(norms))
            found.append(
                {
                    "step": step,
                    "parts": parts,
                    "observed": observed.gradients,
                    "norm": math.hypot(*norms),
                    "backwards": observed.backwards,
                    "reductions": observed.reductions,
                }
            )
            if step + 1 < count:
                reference = torch.load(self._handover.reference(step), weights_only=True)
                self._engine.step(reference, self._facts[step]["rates"])
                self._follow()
        return found

    def _keep(self, norms: list[float]) -> Keep:
        """Return what sketches a gradient and notes its norm, so that no whole gradient is copied."""

        def keep(name: str, gradient: Tensor) -> Tensor:
            norms.append(float(torch.linalg.vector_norm(gradient.double())))
            return self._sketch.tensor(name, gradient)

        return keep

    def _follow(self) -> None:
        """Bring the plain copy to where the model under audit is."""
        model = self._engine.model
        values = {name: whole(value) for name, value in (*model.named_parameters(), *model.named_buffers())}
        load(self._target, self._plain, values, self._group.rank)

    def _parts(self, cell: Cell, known: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
        rank, place = cell.rank, cell.place
        padding = known["padding"][rank][place]
        common = {"rank": rank, "micro_batch": place, "padding": padding, "digest": known["digest"][rank][place]}
        members = {"units": ("loss_sum", cell.count)}
        if self._target.has("padding_loss_sum") and padding:
            members["padding"] = ("padding_loss_sum", padding)
        if self._target.has("extra_loss"):
            members["extra"] = ("extra_loss", 1.0)
        start, found = buffers_of(self._plain), []
        for kind, (member, units) in members.items():
            _, gradient = cell_gradient(self._target, self._plain, cell, member, step)
            set_buffers(self._plain, start)
            found.append({**common, "kind": kind, "units": units, "gradient": self._sketch.of(gradient)})
        return found
