"""Compares the synchronisation counts of hook and profiler, window by window, and says which of them is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.contract.result import Check, Relation
from trainer.kinds.cifar.audit.checks import mode_of
from trainer.kinds.cifar.facts import ModeFacts, SampledWindow
from trainer.kinds.cifar.params import CifarParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both counts of one sampled window."""

    mode: str
    window: SampledWindow
    expected: int

    @property
    def hook(self) -> int:
        """Count of the communication hook."""
        return self.window.hook_count

    @property
    def profiler(self) -> int:
        """Count of the profiler."""
        return self.window.evidence.reductions

    @property
    def agrees(self) -> bool:
        """Whether both counts are equal and the profiler's bytes are a whole number of gradients."""
        return self.hook == self.profiler and self.window.evidence.unmatched_bytes == 0


def comparisons(params: CifarParams, modes: Sequence[ModeFacts]) -> list[Comparison]:
    """Return every sampled window of every mode."""
    return [
        Comparison(mode=facts.mode, window=window, expected=params.syncs_per_step(mode_of(facts)))
        for facts in modes
        for window in facts.windows
    ]


def sampled_share(params: CifarParams, modes: Sequence[ModeFacts]) -> float:
    """Return the share of all accumulation windows that the profiler sampled."""
    total = params.epochs * params.steps_per_epoch * len(modes)
    return sum(len(facts.windows) for facts in modes) / total


def witness_check(params: CifarParams, modes: Sequence[ModeFacts]) -> Check:
    """Check that hook and profiler agree in every sampled window of rank 0.

    `measured` is what the profiler saw, `limit` what the hook counted in the same windows.
    """
    sampled = comparisons(params, modes)
    odd = [item for item in sampled if not item.agrees]
    unseen = [facts.mode for facts in modes if not facts.windows]
    share = sampled_share(params, modes)
    where = f"{len(sampled)} of {params.epochs * params.steps_per_epoch * len(modes)} windows sampled ({share:.1%})"
    if unseen:
        passed, detail = None, f"no window of mode {', '.join(unseen)} was sampled; {where}"
    elif odd:
        passed, detail = False, f"{_blame(odd)}; {where}"
    else:
        passed, detail = True, f"hook and profiler agree in every sampled window; {where}. {_both_off(sampled)}".strip()
    return Check(
        name="sync_witness",
        title="Second count: all-reduce events of the profiler",
        passed=passed,
        measured=sum(item.profiler for item in sampled),
        limit=sum(item.hook for item in sampled),
        relation=Relation.EQUAL,
        unit="synchronisations in sampled windows",
        detail=detail,
    )


def _blame(odd: Sequence[Comparison]) -> str:
    first = odd[0]
    if first.window.evidence.unmatched_bytes:
        return (
            f"mode {first.mode}, window of step {first.window.evidence.step}: the profiler saw "
            f"{first.window.evidence.size} all-reduced bytes, which is not a whole number of gradients "
            f"({first.window.evidence.unmatched_bytes} left over): something else was reduced, or a bucket is missing"
        )
    hook_wrong = all(item.profiler == item.expected for item in odd)
    profiler_wrong = all(item.hook == item.expected for item in odd)
    hook, profiler = sum(item.hook for item in odd), sum(item.profiler for item in odd)
    numbers = (
        f"in {len(odd)} sampled windows the hook counted {hook}, the profiler {profiler} ({hook - profiler:+d}), "
        f"expected {sum(item.expected for item in odd)}"
    )
    if hook_wrong:
        return f"{numbers}: the hook disagrees; it miscounts or was not registered, the profiler matches the mode"
    if profiler_wrong:
        return f"{numbers}: the profiler disagrees, the hook matches the mode"
    return f"{numbers}: neither matches the mode"


def _both_off(sampled: Sequence[Comparison]) -> str:
    off = [item for item in sampled if item.hook != item.expected]
    if not off:
        return ""
    return (
        f"Both saw {off[0].hook} synchronisations in a window of mode {off[0].mode} where {off[0].expected} are "
        "expected: the training itself synchronises this often, both counts are right"
    )
