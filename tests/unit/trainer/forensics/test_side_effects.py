"""What weights do not show: extra reductions, repeated samples, buffers, clipping, batch statistics, bad evidence."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from tests.support.gradients import Plan, evidence, norm_of
from tests.support.planting import planted
from trainer.contract.diagnosis import Diagnosis
from trainer.forensics.diagnose import diagnose
from trainer.forensics.evidence import BufferChange, Evidence

Gradient = dict[str, torch.Tensor]


def names_of(found: Diagnosis) -> set[str]:
    return {cause.name for cause in found.causes}


def clip(most: float) -> Callable[[int, Gradient], Gradient]:
    def clipped(_step: int, gradient: Gradient) -> Gradient:
        norm = norm_of(gradient)
        return {name: value * min(1.0, most / (norm + 1e-6)) for name, value in gradient.items()}

    return clipped


def noisy(_step: int, gradient: Gradient) -> Gradient:
    generator = torch.Generator().manual_seed(5)
    return {
        name: value + 0.01 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in gradient.items()
    }


def buffers(observed: float) -> list[BufferChange]:
    once, twice, seen = (torch.tensor([value], dtype=torch.float64) for value in (0.7, 1.33, observed))
    return [BufferChange(name="bn.running_mean", rank=0, step=1, once=once, twice=twice, observed=seen)]


def reduced(measured: Evidence, places: list[int]) -> Evidence:
    return replace(measured, steps=[replace(step, reductions=[places, places]) for step in measured.steps])


def test_extra_reductions_are_named_although_the_weights_are_right() -> None:
    measured = evidence([Plan()])
    found = diagnose(reduced(measured, [0, 1, 2]))
    assert (found.status, names_of(found)) == ("identified", {"extra_syncs"})
    assert found.causes[0].parameters["after_backwards"] == [0, 1, 2]
    assert diagnose(reduced(measured, [2])).status == "clean"
    assert diagnose(reduced(measured, [])).status == "clean"


def test_extra_reductions_stand_beside_another_mistake() -> None:
    found = diagnose(reduced(evidence([planted(["rank_mean"], Plan())]), [0, 1, 2]))
    assert names_of(found) == {"rank_mean", "extra_syncs"}


def test_buffers_moved_twice_are_no_gradient_fault() -> None:
    found = diagnose(evidence([Plan()], buffers=buffers(1.33)))
    assert (found.status, names_of(found)) == ("identified", {"buffers_moved_twice"})
    assert found.causes[0].parameters == {"buffers": ["bn.running_mean"]}
    assert diagnose(evidence([Plan()], buffers=buffers(0.7))).status == "clean"


def test_same_samples_in_two_cells_are_named() -> None:
    measured = evidence([Plan()])
    step = measured.steps[0]
    twins = {(0, 0): "same", (1, 2): "same"}
    parts = [
        replace(part, digest=twins.get((part.rank, part.micro_batch), f"{part.rank}/{part.micro_batch}"))
        for part in step.parts
    ]
    found = diagnose(replace(measured, steps=[replace(step, parts=parts)]))
    assert (found.status, names_of(found)) == ("identified", {"repeated_samples"})
    assert "micro-batch 0 of rank 0 and micro-batch 2 of rank 1" in found.causes[0].explanation


@pytest.mark.parametrize("names", [(), ("rank_mean",), ("missing_world_size",)])
def test_clipping_is_told_from_weighting(names: tuple[str, ...]) -> None:
    plan = replace(planted(names, Plan()), after=clip(0.25))
    found = diagnose(evidence([plan] * 3))
    hidden = {"missing_world_size"}  # clipping hides any constant factor
    assert names_of(found) == {"clipped_gradients", *names} - hidden
    assert found.status == "identified"


def test_clipping_before_unscale_names_the_scale() -> None:
    # torch adds 1e-6 to the norm of the scaled gradient, where it does not matter.
    scaled = Plan(after=lambda step, gradient: unscaled(clip(1.0)(step, scaled_up(gradient))))
    found = diagnose(evidence([scaled] * 3))
    assert names_of(found) == {"clipped_before_unscale"}
    assert found.causes[0].parameters["loss_scale"] == 65536
    assert found.causes[0].parameters["max_norm"] == pytest.approx(1.0, rel=1e-5)


REDUCED = {"with the last": None, "with every": (0, 1, 2)}


@pytest.mark.parametrize("reduced", REDUCED)
@pytest.mark.parametrize("names", [(), ("mean_of_means",), ("missing_world_size",), ("local_count_as_global",)])
@pytest.mark.parametrize("last", [True, False])
def test_clipping_inside_the_window_is_named_beside_other_mistakes(
    names: tuple[str, ...], reduced: str, last: bool
) -> None:
    """A11, with and without a clipping after the last backward pass."""
    plan = replace(planted(names, Plan()), reduced_after=REDUCED[reduced])

    def clipped(place: int, gradient: Gradient) -> Gradient:
        return clip(0.2)(0, gradient) if last or place < 2 else gradient

    found = diagnose(evidence([replace(plan, between=clipped)] * 2))
    assert (found.status, names_of(found)) == ("identified", {"clipped_inside_window", *names})
    numbers = next(cause.parameters for cause in found.causes if cause.name == "clipped_inside_window")
    assert numbers["norm"] == pytest.approx(0.2, rel=1e-5)
    assert "After backward pass 0 of step 1 (both counted from 0), rank 0 multiplied its gradients by" in " ".join(
        found.reasoning
    )


def test_clipping_once_and_a_norm_that_is_never_reached_are_not_called_inside() -> None:
    once = diagnose(
        evidence([Plan(between=lambda place, gradient: clip(0.25)(0, gradient) if place == 2 else gradient)] * 3)
    )
    assert names_of(once) == {"clipped_gradients"}
    assert diagnose(evidence([Plan(between=lambda _place, gradient: clip(1e6)(0, gradient))] * 3)).status == "clean"


@pytest.mark.parametrize("last", [True, False])
def test_a_factor_inside_the_window_is_no_clipping(last: bool) -> None:
    def halved(place: int, gradient: Gradient) -> Gradient:
        return {name: value * (0.5 if last or place < 2 else 1) for name, value in gradient.items()}

    found = diagnose(evidence([replace(planted(["rank_mean"], Plan()), between=halved)] * 2))
    assert (found.status, names_of(found)) == ("identified", {"rank_mean", "scaled_inside_window"})
    assert found.weights is not None
    assert found.weights.observed[0][0] == pytest.approx((1 / 8 if last else 1 / 4) / 18)


@pytest.mark.parametrize("seed", range(5))
def test_clipping_does_not_lend_its_name_to_weights_that_it_does_not_explain(seed: int) -> None:
    random = Random(seed)
    odd = {(rank, place): random.uniform(0.5, 2.0) / 10 for rank in range(2) for place in range(3)}
    plan = Plan(factor=lambda _plan, r, m: odd[r, m], between=lambda _place, gradient: clip(0.2)(0, gradient))
    found = diagnose(evidence([plan] * 2))
    assert (found.status, names_of(found)) == ("unexplained", {"clipped_inside_window"})  # it was measured
    unmeasured = evidence([plan] * 2)
    hidden = replace(unmeasured, steps=[replace(step, changes=()) for step in unmeasured.steps])
    assert (diagnose(hidden).status, "clipped_inside_window" in names_of(diagnose(hidden))) == ("unexplained", False)


def scaled_up(gradient: Gradient) -> Gradient:
    return {name: value * 65536 for name, value in gradient.items()}


def unscaled(gradient: Gradient) -> Gradient:
    return {name: value / 65536 for name, value in gradient.items()}


def test_one_step_of_an_odd_factor_is_not_called_clipping() -> None:
    assert diagnose(evidence([Plan(after=clip(0.25))])).status == "unexplained"


def test_residual_is_not_called_a_weighting() -> None:
    measured = evidence([Plan(after=noisy)])
    found = diagnose(measured)
    assert (found.status, found.causes, found.weights) == ("unexplained", [], None)
    assert found.residual is not None
    assert 0.01 < float(found.residual) < 0.5
    assert any("no weights fit" in sentence for sentence in found.ruled_out)
    layered = diagnose(replace(measured, batch_statistics=["features.bn"]))
    assert (layered.status, names_of(layered)) == ("identified", {"batch_statistics"})
    assert layered.causes[0].parameters == {"layers": ["features.bn"]}


def test_batch_statistics_do_not_hide_a_weighting_fault() -> None:
    measured = evidence([planted(["rank_mean"], Plan())], batch_statistics=["features.bn"])
    assert names_of(diagnose(measured)) == {"rank_mean"}


@pytest.mark.parametrize(
    ("extra", "names", "causes"),
    [
        (1 / 3, (), set()),
        (1.0, (), {"auxiliary_loss_weight"}),
        (1 / 6, ("missing_world_size",), {"missing_world_size"}),
    ],
)
def test_auxiliary_losses_have_their_own_weight(extra: float, names: tuple[str, ...], causes: set[str]) -> None:
    assert names_of(diagnose(evidence([planted(names, Plan(extra=extra))]))) == causes


def test_one_parameter_cannot_tell_cells_apart() -> None:
    one: Any = {"w": 1}
    for names in (("mean_of_means",), ("unsynchronised_step",), ("padding_in_loss", "padding_in_denominator")):
        found = diagnose(evidence([planted(names, Plan(parameters=one))]))
        assert (found.status, names_of(found)) == ("ambiguous", set(names))
        assert found.weights is not None
        assert {value for row in found.weights.observed for value in row} == {None}
        assert "more parameters" in found.suggestion
    assert diagnose(evidence([Plan(parameters=one)])).status == "clean"
    odd = Plan(parameters=one, factor=lambda _plan, rank, place: 0.0137 * (rank + 2 * place + 1))
    assert diagnose(evidence([odd])).status == "unexplained"


def test_more_unknown_weights_than_numbers_prove_nothing() -> None:
    few: Any = {"w": 7}
    found = diagnose(evidence([planted(["padding_in_loss"], Plan(parameters=few))]))
    assert (found.status, names_of(found)) == ("ambiguous", {"padding_in_loss"})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_said_to_be(value: float) -> None:
    def broken(_step: int, gradient: Gradient) -> Gradient:
        return {name: torch.full_like(found, value) if name == "head" else found for name, found in gradient.items()}

    found = diagnose(evidence([Plan(after=broken)]))
    assert (found.status, found.residual) == ("unexplained", None)
    assert "head on rank 0 is not finite" in found.reasoning[0]


def test_empty_cells_and_windows() -> None:
    plan = Plan(units=((5, 0, 3), (2, 8, 1)))
    assert diagnose(evidence([plan])).status == "clean"
    assert names_of(diagnose(evidence([planted(["rank_mean"], plan)]))) == {"rank_mean"}
    nothing = diagnose(evidence([Plan(units=((0, 0), (0, 0)), padding=((1, 1), (1, 1)), factor=lambda *_: 0.0)]))
    assert nothing.status == "unexplained"
    assert "no micro-batch holds a token" in nothing.reasoning[0]


def test_nothing_arriving_is_a_dropped_window() -> None:
    gone = Plan(after=lambda _step, gradient: {name: value * 0 for name, value in gradient.items()})
    assert names_of(diagnose(evidence([gone]))) == {"dropped_microbatch"}


def test_one_wrong_step_of_three_is_named_with_its_step() -> None:
    found = diagnose(evidence([Plan(), planted(["rank_mean"], Plan()), Plan()]))
    assert [(cause.name, cause.parameters) for cause in found.causes] == [("rank_mean", {"steps": [2]})]
