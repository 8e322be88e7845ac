"""Cost of telemetry in training.

Run: `python -m benchmarks.telemetry_overhead [--pairs N]`
With telemetry: events, breadcrumbs, the counting hook, metrics reduced across ranks. Without: the same windows, without
output and with DDP's own reduction. Neighbouring windows in the same two ranks are compared. Goal: at most 1 %.
The profiler's sampled windows are evidence, not telemetry; their additional cost is printed separately.
"""

import argparse
import itertools
import statistics
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from benchmarks.ranks import IMAGES, RANKS, header, launch, median_ratio, paired, timed, training_of
from trainer.common.context import StageContext
from trainer.common.distributed import Group
from trainer.common.sync_counter import SyncCounter
from trainer.kinds.cifar.data.draws import EpochPlan
from trainer.kinds.cifar.train.loop import REPORTS_PER_EPOCH, Training

GOAL = 0.01
PROFILED = 6
ALONE = 400


class Silent:
    """Has the methods of a rank's telemetry but does nothing."""

    crumb = SimpleNamespace(step=0)

    def collective(self, _: str) -> AbstractContextManager[None]:
        """Wrap nothing."""
        return nullcontext()

    def __getattr__(self, _: str) -> Any:
        return lambda *_args, **_fields: None


def silent_training(group: Group, context: StageContext) -> Training:
    """Return the training without hook, events and reports."""
    quiet = Group(
        rank=group.rank,
        world_size=group.world_size,
        device=group.device,
        backend=group.backend,
        telemetry=Silent(),  # type: ignore[arg-type]
    )
    with patch.object(SyncCounter, "attach"):
        training = training_of(quiet, context)
    training._count = lambda *_args, **_fields: None  # type: ignore[method-assign]
    training._report = lambda: None  # type: ignore[method-assign]
    return training


def run_rank(group: Group, context: StageContext) -> None:
    """Time both trainings on this rank."""
    pairs = _options().pairs
    loud, quiet = training_of(group, context), silent_training(group, context)
    witness, loud.witness, quiet.witness = loud.witness, None, None
    plan = EpochPlan(train_size=IMAGES, rank=group.rank, world_size=RANKS, seed=47)
    windows = list(plan.ids(0).reshape(-1, context.params.accum_steps, context.params.batch_size))
    mine, theirs = itertools.cycle(windows), itertools.cycle(windows)
    times = paired(lambda: loud.window(0, next(mine)), lambda: quiet.window(0, next(theirs)), pairs)
    loud.witness = witness
    profiled = []
    for _ in range(PROFILED):
        loud.done = 0  # a step whose window is sampled
        profiled.append(timed(lambda: loud.window(0, next(mine))))
    alone = calls_alone(loud)
    if group.rank == 0:
        _print(times, statistics.median(profiled), alone)


def calls_alone(training: Training) -> float:
    """Return the seconds of a window's telemetry calls alone, without the training."""
    telemetry = training.group.telemetry
    every = max(1, training.params.steps_per_epoch // REPORTS_PER_EPOCH)

    def window(number: int) -> None:
        for _ in range(training.params.accum_steps):
            telemetry.mark("forward")
            telemetry.mark("backward")
        with telemetry.collective("gradients, bucket 0"):
            pass
        telemetry.mark("optimizer")
        telemetry.mark("step", number)
        counted = training.counter.take()
        telemetry.sync(number, counted.count, counted.size)
        if number % every == 0:
            training.recent.samples = 1
            training._report()

    def all_windows() -> None:
        for number in range(ALONE):
            window(number)

    return timed(all_windows) / ALONE


def _print(times: list[tuple[float, float]], profiled: float, alone: float) -> None:
    on, off = (statistics.median(pair[side] for pair in times) for side in (0, 1))
    cost = median_ratio(times) - 1
    # Half of the pairs are outside this range: the noise of the machine.
    quarters = statistics.quantiles([first / second - 1 for first, second in times], n=4)
    print(header("telemetry: events, hook and metrics", len(times)))
    print(f"with telemetry     {on * 1000:8.1f} ms a window")
    print(f"without            {off * 1000:8.1f} ms a window")
    noise = (quarters[2] - quarters[0]) / 2 / len(times) ** 0.5
    judged = "reached" if cost <= GOAL else "MISSED"
    judged = judged if noise < GOAL else "the machine is too noisy for a result"
    print(f"cost               {cost:8.2%} (goal {GOAL:.0%}: {judged})")
    print(f"its calls alone    {alone * 1000:8.2f} ms a window, {alone / off:.2%}")
    print(f"half of the pairs  {quarters[0]:8.2%} to {quarters[2]:.2%}")
    print(f"a profiled window  {(profiled - on) * 1000:+8.1f} ms (first three windows, then one an epoch)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="at least 2")
    options = parser.parse_args()
    if options.pairs < 2:  # quartiles need two
        parser.error("--pairs must be at least 2")
    return options


if __name__ == "__main__":
    _options()
    launch(__file__, run_rank)
