"""Local counts, divisors that belong to no mistake, and parameters that lack a micro-batch: what is said of them."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from tests.support.gradients import PARAMETERS, Factor, Plan, evidence
from tests.support.planting import named, planted
from trainer.contract.diagnosis import Diagnosis
from trainer.forensics.diagnose import diagnose


def names_of(diagnosis: Diagnosis) -> set[str]:
    return {cause.name for cause in diagnosis.causes}


def read(names: Sequence[str], plan: Plan) -> Diagnosis:
    return diagnose(evidence([planted(names, plan)] * 3))


def test_local_count_without_the_factor_is_one_mistake() -> None:
    found = read(["local_count_as_global", "missing_world_size"], Plan())
    assert (found.status, names_of(found)) == ("identified", {"local_count_as_global"})
    assert found.causes[0].parameters == {"count_of_rank": 0}
    assert "9 of 20 tokens, and the engine averages over 2 ranks again" in found.causes[0].explanation
    assert "1.111 times" in found.causes[0].explanation
    assert "loss * world_size / count" in found.suggestion
    kept = read(["local_count_as_global"], Plan())
    assert "again" not in kept.causes[0].explanation


def test_largest_count_of_any_rank_is_a_local_count() -> None:
    largest: Factor = lambda plan, *_: plan.ranks / max(map(sum, plan.units))  # noqa: E731
    none = ((0,) * 3,) * 2
    steps = [
        Plan(units=units, padding=none, factor=largest) for units in (((5, 1, 3), (2, 8, 1)), ((9, 2, 4), (1, 3, 2)))
    ]
    found = diagnose(evidence(steps))
    assert (found.status, names_of(found)) == ("identified", {"local_count_as_global"})
    assert found.causes[0].parameters == {}
    assert "not the same rank in every step" in found.causes[0].explanation


def test_divisor_that_belongs_to_no_mistake_is_said() -> None:
    rows = diagnose(evidence([Plan(factor=lambda *_: 2 / 13.7)]))
    assert "As if the sum of all tokens was divided by 13.7 instead of 20." in rows.reasoning
    # The count of another micro-batch: off by one.
    shifted = diagnose(evidence([Plan(factor=lambda plan, r, m: 1 / 3 / plan.units[r][m - 1])]))
    assert (rows.status, shifted.status) == ("unexplained", "unexplained")
    assert (
        "As if tokens were divided, micro-batch by micro-batch, by rank 0: 18, 30, 6; rank 1: 6, 12, 48; right is 20."
    ) in shifted.reasoning


def test_parameters_that_are_detached_in_one_micro_batch_are_named() -> None:
    whole = evidence([Plan()])
    step = whole.steps[0]
    lost = [
        replace(
            part,
            gradient={name: value * (name != "head" or part.micro_batch > 0) for name, value in part.gradient.items()},
        )
        for part in step.parts
    ]
    seen = {
        name: torch.stack([part.gradient[name] / 20 for part in lost if part.kind == "units"]).sum(dim=0)
        for name in PARAMETERS
    }
    found = diagnose(replace(whole, steps=[replace(step, observed=[seen, seen])]))
    assert [(cause.name, cause.parameters) for cause in found.causes] == [
        ("dropped_microbatch", {"parameters": ["head"]})
    ]
    assert "frozen or detached" in found.causes[0].explanation
    assert "trainable" in found.suggestion
    assert all(sentence.count("sum to") < 2 for sentence in found.reasoning)


def test_local_count_stays_ambiguous_where_ranks_and_micro_batches_are_as_many() -> None:
    square = Plan(units=((3, 5), (7, 2)), padding=((0, 0), (0, 0)))
    wanted = [["local_count_as_global"], ["extra_accumulation_division", "local_count_as_global"]]
    for second in ("missing_world_size", "extra_accumulation_division"):
        found = read(["local_count_as_global", second], square)
        assert (found.status, sorted(map(sorted, found.alternatives))) == ("ambiguous", sorted(wanted))
        assert found.suggestion == "Run with 3 micro-batches per rank."
        wider = read(["local_count_as_global", second], Plan(units=((3, 5, 4), (7, 2, 6)), padding=((0,) * 3,) * 2))
        assert names_of(wider) == named({"local_count_as_global", second})


def test_constant_factor_that_looks_like_a_mistake_is_said_and_told_apart() -> None:
    half: Factor = lambda plan, *_: 0.5 * plan.ranks / plan.whole  # noqa: E731
    found = diagnose(evidence([Plan(factor=half)] * 2))
    assert names_of(found) == {"missing_world_size"}
    assert "A constant factor of 0.5 in the loss would look like missing_world_size." in " ".join(found.reasoning)
    three = diagnose(
        evidence([Plan(units=((5, 1, 3), (2, 8, 1), (4, 4, 6)), padding=((0,) * 3,) * 3, factor=half)] * 2)
    )
    assert (three.status, names_of(three)) == ("unexplained", set())
    assert "Every token weighs 0.5 times what it should." in " ".join(three.reasoning)
    assert not any("constant factor" in sentence for sentence in read(["rank_mean"], Plan()).reasoning)
