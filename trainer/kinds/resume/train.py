"""Stage entry of the trajectories: train from the beginning, from a checkpoint, or from where a kill interrupted it."""

from dataclasses import replace
from pathlib import Path

from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.store import CheckpointStore
from trainer.common.context import StageContext
from trainer.common.continuation import KEEP, Continuation
from trainer.common.distributed import process_group
from trainer.contract.exits import EXIT_PREEMPTED
from trainer.contract.manifest import step_directory
from trainer.kinds.resume.params import origin_stage
from trainer.kinds.resume.trajectory import Trajectory, plan_shape
from trainer.tokens.plan import data_lock

FREE = frozenset({"stop_step", "kills"})
"""Parameters that control where to stop; not `updates`, because the cosine schedule depends on it."""


def run(context: StageContext) -> int:
    """Train up to `arguments["until"]` updates and return the exit code: 0, or the one for "preempted after a save".

    `arguments`: `until`; `origin`, true to start at the checkpoint of `stop_step`; `fault`, the mistake to make there.
    """
    until, stop = int(context.arguments["until"]), context.params.stop_step
    with process_group(context) as group:
        trajectory = Trajectory(context.params, group)
        with Continuation(
            context=context,
            group=group,
            store=open_store(context),
            state=trajectory.state,
            last=until,
            pin=frozenset({stop}),
        ) as continuation:
            _begin(context, trajectory, continuation)
            while trajectory.step < until:
                trajectory.update()
                context.telemetry.progress(trajectory.step, until, "updates")
                if continuation.after_update(trajectory.step, trajectory.record, due=trajectory.step == stop):
                    return EXIT_PREEMPTED
    return 0


def _begin(context: StageContext, trajectory: Trajectory, continuation: Continuation) -> None:
    fault = str(context.arguments.get("fault", ""))
    restored = continuation.restore()
    broken = restored is None and bool(fault)
    if restored is None and context.arguments.get("origin"):
        restored = open_store(context, stage=origin_stage(context.params)).load(origin(context), trajectory.state)
    if restored is not None:
        trajectory.adopt(restored)
    if broken:  # only once, at the origin of the trajectory: a later attempt continues the broken one
        trajectory.break_on_purpose(fault)
    trajectory.note_start(context.attempt)
    context.telemetry.phase("train", trajectory.step)


def open_store(context: StageContext, stage: str | None = None) -> CheckpointStore:
    """Return the checkpoints of this stage's trajectory, or of another stage's.

    A deliberately broken trajectory has its own identity, so that no correct one continues from it.
    """
    identity = Identity.of(context, data_lock(plan_shape(context.params)), free=FREE)
    fault = context.arguments.get("fault")
    if stage is None and fault:
        identity = replace(identity, config={**identity.config, "fault": fault})
    return CheckpointStore(
        context.paths.checkpoints(stage or context.stage),
        identity,
        keep=KEEP,
        telemetry=context.telemetry,
        run_root=context.paths.root,
    )


def origin(context: StageContext) -> Path:
    """Return the checkpoint that continued trajectories start from."""
    return step_directory(context.paths.checkpoints(origin_stage(context.params)), context.params.stop_step)
