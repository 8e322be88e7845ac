"""From the weights of all windows to names: the usual windows together, then what only happens at an epoch's end."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainer.forensics.cells import Window
from trainer.forensics.explain import Reading, Status, explain
from trainer.kinds.trace.judge.weighing import Objective, Weighed, Weigher

WORLD = frozenset({"missing_world_size", "extra_world_size"})
ACCUMULATION = frozenset({"extra_accumulation_division", "missing_accumulation_division"})
MEANS = frozenset({"mean_of_means", "rank_mean"})


@dataclass(slots=True)
class Group:
    """Windows that say the same."""

    reading: Reading
    windows: list[Weighed]
    names: tuple[str, ...] = ()
    """The mistakes; of several sets that fit, the likeliest."""

    @property
    def others(self) -> list[str]:
        """What else would give the same weights, in words."""
        return [" with ".join(names) for names in self.reading.alternatives if set(names) != set(self.names)]


@dataclass(slots=True)
class Understanding:
    """What the weights of one objective say."""

    objective: Objective
    alone: bool
    """Whether it is the only loss of this optimizer."""
    weighed: list[Weighed]
    clear: list[Weighed] = field(default_factory=list)
    """Windows whose weights are known and whose gradients were all reduced."""
    groups: list[Group] = field(default_factory=list)
    """The usual windows first."""
    late: list[Weighed] = field(default_factory=list)
    """Windows that are uneven only because an epoch's last batch is smaller."""

    @property
    def scaled(self) -> bool:
        """Whether the sum of the weights says something."""
        return self.alone and all(item.scaled for item in self.clear)


def understand(weigher: Weigher) -> list[Understanding]:
    """Return what the weights say, one entry per objective."""
    usual = weigher.run.usual_micro_batches(weigher.optimizer)
    objectives = weigher.objectives or [frozenset()]
    alone = len(objectives) == 1 and not weigher.run.unseen_losses
    found = [Understanding(objective, alone, weigher.weigh(objective)) for objective in objectives]
    for item in found:
        item.clear = [one for one in item.weighed if not one.problem and not one.local and one.window.counted]
        _group(item, usual, weigher)
    return found


def _group(item: Understanding, usual: int | None, weigher: Weigher) -> None:
    regular = [one for one in item.clear if usual is None or one.step.micro_batches == usual]
    short = [one for one in item.clear if one not in regular]
    if not regular and short:
        regular, short = short, []
    whole = _read(item, regular, usual)
    if regular and whole.status is not Status.CLEAN:
        full, late = _by_last_batch(item, regular, usual)
        if full:
            item.late = late
            regular, whole = full, _read(item, full, usual)
    if regular and whole.status is Status.UNEXPLAINED:
        # The end of an epoch may be handled by other code.
        ends = [one for one in regular if weigher.run.epochs.is_last(one.step)]
        middle = [one for one in regular if one not in ends]
        if ends and middle and _read(item, middle, usual).status is not Status.UNEXPLAINED:
            item.groups = [Group(_read(item, middle, usual), middle), Group(_read(item, ends, usual), ends)]
            regular = []
    if regular:
        item.groups.append(Group(whole, regular))
    counts = sorted({one.step.micro_batches for one in short})
    for count in counts:
        same = [one for one in short if one.step.micro_batches == count]
        item.groups.append(Group(_read(item, same, usual), same))
    main = frozenset(item.groups[0].reading.names) if item.groups else frozenset()
    for place, group in enumerate(item.groups):
        group.names = _likeliest(group, main if place else None)


def _likeliest(group: Group, main: frozenset[str] | None) -> tuple[str, ...]:
    """Return the set of mistakes that fits best what else is known; all alternatives give the same weights."""
    means = any("mean" in one.reductions for one in group.windows)
    # Whoever averages divides by micro-batches; whoever adds up has the number of ranks to think of.
    unlikely = WORLD if means else ACCUMULATION

    def odds(names: tuple[str, ...]) -> tuple[bool, int]:
        return main is not None and frozenset(names) - {"short_last_window"} != main, len(unlikely & set(names))

    return min(group.reading.alternatives, key=odds, default=group.reading.names)


def _by_last_batch(
    item: Understanding, windows: Sequence[Weighed], usual: int | None
) -> tuple[list[Weighed], list[Weighed]]:
    """Split into windows of full batches that are right, and those that a smaller batch makes uneven; else nothing."""
    rows = [count for one in windows for count in one.rows if count is not None]
    full = [one for one in windows if one.rows and set(one.rows) == {max(rows, default=0)}]
    late = [one for one in windows if one not in full]
    if not full or not late or _read(item, full, usual).status is not Status.CLEAN:
        return [], []
    readings = [_read(item, [one], usual) for one in late]
    if any(one.status is Status.UNEXPLAINED or not set(one.names) <= MEANS for one in readings):
        return [], []
    return full, [one for one, reading in zip(late, readings, strict=True) if reading.status is not Status.CLEAN]


def _read(item: Understanding, windows: Sequence[Weighed], usual: int | None) -> Reading:
    tolerance = max((one.tolerance for one in windows), default=1e-6)
    scaled = item.alone and all(one.scaled for one in windows)
    return explain(
        [one.window if scaled else _unscaled(one.window) for one in windows],
        tolerance=tolerance,
        usual_micro_batches=usual if scaled else None,
    )


def _unscaled(window: Window) -> Window:
    """Return the window with weights that sum to 1: only how they compare to one another is known."""
    whole = window.total_weight
    if not whole:
        return window
    return Window(tuple(replace(cell, weight=cell.weight / whole) for cell in window.cells), window.world_size)
