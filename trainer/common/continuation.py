"""What every training loop does besides training: resume, save when due, stop when preempted.

    with Continuation(context=context, group=group, store=store, state=state, last=updates) as run:
        restored = run.restore()                      # None: from the beginning
        for step in range(restored.step if restored else 0, updates):
            ...                                       # one whole accumulation window and its optimizer step
            if run.after_update(step + 1, sampler_state):
                return EXIT_PREEMPTED                 # saved; the entry returns this code

A SIGTERM that reaches any rank between two updates makes all ranks save at the same step and exit. The signal may reach
only one rank, or ranks at different times: the flags are reduced with a maximum once per update, so all decide alike.
"""

import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from trainer.common.checkpoints.state import TrainingState
from trainer.common.checkpoints.store import CheckpointStore, Restored
from trainer.common.context import StageContext
from trainer.common.distributed import Group
from trainer.common.preemption import PreemptionFlag

KEEP: Final = 3
"""Number of newest checkpoints kept besides the pinned ones; older ones are used if the newest is damaged."""


class Continuation:
    """Checkpoints and preemption of one training loop; see the module docstring for its use."""

    def __init__(
        self,
        *,
        context: StageContext,
        group: Group,
        store: CheckpointStore,
        state: TrainingState,
        last: int,
        pin: frozenset[int] = frozenset(),
    ) -> None:
        """`last` is the number of updates after which training is complete; checkpoints at `pin` are never removed."""
        self._context, self._group, self._store, self._state = context, group, store, state
        self._last, self._pin = last, pin | {last}
        self._flag = PreemptionFlag()
        self._stack = ExitStack()
        self._preempted = False

    def __enter__(self) -> Self:
        self._stack.enter_context(self._flag)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._preempted:
            # When the first rank exits, the launcher sends SIGTERM to the others; they have saved and are exiting too.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    @property
    def preemption_requested(self) -> bool:
        """Whether a SIGTERM has reached this rank; the others are informed with the next update."""
        return self._flag.requested

    def restore(self, origin: Path | None = None) -> Restored | None:
        """Restore the training state at which this attempt continues; None means from the beginning.

        In this order: the newest valid checkpoint in this trajectory's folder, saved by an earlier attempt or linked
        there when this run was created to continue another; `origin`, the planned start of the trajectory; nothing.
        Raises CheckpointRefused or CheckpointDamaged on all ranks alike.
        """
        restored = self._store.load_newest(self._state)
        if restored is None and origin is not None:
            restored = self._store.load(origin, self._state)
        return restored

    def after_update(self, step: int, sampler: Callable[[], Mapping[str, Any]], *, due: bool = False) -> bool:
        """Save if `step` is due, the last, or the one at which all ranks stop; True tells the loop to stop now.

        `sampler` is called only if a checkpoint is saved. Every rank must call this once per update.
        """
        self._flag.turned()
        preempted = bool(self._group.max_integers([self._flag.requested], "preemption flag")[0])
        if preempted:
            self._preempted = True
            self._flag.acknowledge()
        every = int(self._context.params.save_every)
        if preempted or due or step == self._last or (every and step % every == 0):
            self._store.save(step, self._state, sampler(), pinned=step in self._pin)
        if preempted and self._group.rank == 0:
            self._context.telemetry.message(f"preempted: saved after update {step}, exiting", "warning")
        return preempted
