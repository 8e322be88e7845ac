"""Short trajectories of the kind `resume` on real ranks: run by torchrun as a stage, judged by the tests.

They are trained sequentially, each with its own objects: a new reducer starts with its first bucket layout, as a new
process does.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from trainer.common.checkpoints.identity import Identity
from trainer.common.checkpoints.store import CheckpointStore
from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.kinds.resume.params import ResumeParams
from trainer.kinds.resume.train import FREE
from trainer.kinds.resume.trajectory import Trajectory, plan_shape
from trainer.tokens.corpus import build_corpus
from trainer.tokens.evaluate import evaluate
from trainer.tokens.plan import data_lock


class Lab:
    """Trains trajectories and keeps their checkpoints under `work/<variant>/<name>`."""

    def __init__(self, context: StageContext, group: Group, variant: str) -> None:
        self.params: ResumeParams = context.params.model_copy(update={"variant": variant})
        self.context, self.group = context, group
        self.root = context.paths.work / variant

    def store(self, name: str) -> CheckpointStore:
        """Return the checkpoints of one trajectory."""
        identity = Identity.of(self.context, data_lock(plan_shape(self.params)), free=FREE)
        config = {**identity.config, "variant": self.params.variant}
        run_root = self.context.paths.root
        return CheckpointStore(self.root / name, replace(identity, config=config), run_root=run_root)

    def train(
        self,
        name: str,
        until: int,
        *,
        source: str = "",
        at: int = 0,
        after_update: Callable[[Trajectory], None] = lambda _: None,
    ) -> Trajectory:
        """Train `name` up to `until` updates, from the checkpoint of `source` after `at` updates if one is given."""
        trajectory = Trajectory(self.params, self.group)
        if source:
            path = self.root / source / f"step-{at:04d}"
            trajectory.adopt(self.store(source).load(path, trajectory.state))
        trajectory.note_start(1)
        while trajectory.step < until:
            trajectory.update()
            after_update(trajectory)
        self.store(name).save(trajectory.step, trajectory.state, trajectory.record())
        return trajectory


def run(context: StageContext) -> None:
    """Train every trajectory that the tests need."""
    with process_group(context) as group:
        for variant in ("correct", "default_buckets"):
            lab = Lab(context, group, variant)
            stop, end = context.params.stop_step, context.params.updates
            lab.train("continuous", end)
            lab.train("control", end)
            lab.train("first", stop)
            lab.train("resumed", end, source="first", at=stop)
        # Further questions at one world size only: starting ranks is expensive.
        if group.world_size == 2:
            _evaluated(Lab(context, group, "correct"))
        if group.world_size == 3:
            _often(Lab(context, group, "correct"))
        group.barrier("end of the lab")


def _often(lab: Lab) -> None:
    """Resume three times, the last time with no updates left."""
    end = lab.params.updates
    lab.train("second", end - 1, source="first", at=lab.params.stop_step)
    lab.train("third", end, source="second", at=end - 1)
    lab.train("fourth", end, source="third", at=end)


def _evaluated(lab: Lab) -> None:
    """Evaluate in the middle of a training: as the product does it, and in a way that changes the training state."""
    corpus = build_corpus(lab.params.seed, lab.params.world_size)

    def aside(trajectory: Trajectory) -> None:
        if trajectory.step == lab.params.stop_step:
            evaluate(lab.group, trajectory.state.module, corpus.test)

    def drawing(trajectory: Trajectory) -> None:
        with torch.no_grad():
            trajectory.state.module(torch.zeros(1, 4, dtype=torch.int64))  # in training mode: dropout draws

    lab.train("evaluated", lab.params.updates, after_update=aside)
    lab.train("drawing", lab.params.updates, after_update=drawing)
