"""Random windows with planted mistakes, through the files: weights right to 1e-6, named right or unexplained."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.traces import Script, judged
from trainer.kinds.trace.judge.catalogue import CHECKS

Counts = list[list[int]]
Factor = Callable[[Counts, int, int], float]
"""(units, rank, micro-batch) -> weight of one unit, before the engine averages."""
SHAPES: dict[str, tuple[str, Factor]] = {
    "": ("sum", lambda units, _r, _m: len(units) / whole(units)),
    "rank_mean": ("sum", lambda units, r, _m: 1 / sum(units[r])),
    "mean_of_means": ("mean", lambda units, _r, _m: 1 / len(units[0])),
    "microbatch_denominator": (
        "sum",
        lambda units, _r, m: len(units) / (len(units[0]) * sum(row[m] for row in units)),
    ),
}
SCALES: dict[str, Callable[[Counts], float]] = {
    "": lambda _units: 1.0,
    "missing_world_size": lambda units: 1 / len(units),
    "extra_world_size": lambda units: float(len(units)),
    "extra_accumulation_division": lambda units: 1 / len(units[0]),
    "missing_accumulation_division": lambda units: float(len(units[0])),
    "unexplained": lambda units: 0.7316548 + 1 / (7 + whole(units)),
}
COMMON = {"max_examples": 60, "deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def whole(units: Counts) -> int:
    return sum(map(sum, units))


def traced(folder: Path, windows: list[Counts], shape: str, scale: str, grad_scale: float | None) -> Script:
    reduction, factor = SHAPES[shape]
    script = Script(Path(mkdtemp(dir=folder)), world=len(windows[0]))
    for units in windows:
        script.window(
            units,
            lambda r, m, units=units: factor(units, r, m) * SCALES[scale](units) * (grad_scale or 1.0),  # type: ignore[misc]
            reduction=reduction,
            scale=grad_scale,
        )
    return script


def truth(units: Counts, shape: str, scale: str, rank: int, place: int) -> float:
    reduction, factor = SHAPES[shape]
    unit = factor(units, rank, place) / (units[rank][place] if reduction == "mean" else 1)
    return unit * SCALES[scale](units) / len(units)


def drawn(random: Random, size: tuple[int, int], count: int) -> list[Counts]:
    ranks, places = size
    return [[[random.randint(1, 400) for _ in range(places)] for _ in range(ranks)] for _ in range(count)]


def weight_names(result: Any) -> set[str]:
    return {item["name"] for item in result.summary["findings"] if item["check"] in ("token_weights", "loss_scale")}


@settings(**COMMON)  # type: ignore[arg-type]
@given(
    st.tuples(st.integers(2, 4), st.integers(1, 4)),
    st.integers(0, 2**32),
    st.sampled_from(sorted(SHAPES)),
    st.tuples(st.sampled_from(sorted(SCALES)), st.sampled_from([None, 65536.0, 3.7])),
)
def test_planted_mistakes(
    tmp_path: Path, size: tuple[int, int], seed: int, shape: str, scales: tuple[str, float | None]
) -> None:
    random, (scale, grad_scale) = Random(seed), scales
    windows = drawn(random, size, 6)
    result = judged(traced(tmp_path, windows, shape, scale, grad_scale))
    for units, window in zip(windows, result.summary["windows"], strict=True):
        for cell in window["cells"]:
            wanted = truth(units, shape, scale, cell["rank"], cell["micro_batch"])
            assert cell["weight"] == pytest.approx(wanted, rel=1e-6)
    named = weight_names(result)
    one_place = size[1] == 1
    planted = {{"mean_of_means": "rank_mean", "microbatch_denominator": ""}.get(shape, shape) if one_place else shape}
    planted |= {"" if one_place and "accumulation" in scale else scale}
    planted -= {""}
    if "unexplained" in planted:
        assert named == {"unexplained"}, (size, named)
        return
    alternatives = {
        text
        for item in result.summary["findings"]
        for text in " with ".join(item["measured"].get("alternatives", [])).split(" with ")
    }
    # Two ranks and two micro-batches divide by the same number: then both causes are given.
    assert planted <= named | alternatives, (size, shape, scale, named)
    assert len(named) == len(planted), (size, shape, scale, named)


@settings(**COMMON)  # type: ignore[arg-type]
@given(st.tuples(st.integers(2, 3), st.integers(2, 4)), st.integers(0, 2**32))
def test_weights_of_no_mistake_are_unexplained(tmp_path: Path, size: tuple[int, int], seed: int) -> None:
    random = Random(seed)
    windows = drawn(random, size, 3)
    factors = [[[random.uniform(1e-4, 1.0) for _ in row] for row in units] for units in windows]
    script = Script(Path(mkdtemp(dir=tmp_path)), world=size[0])
    for units, own in zip(windows, factors, strict=True):
        script.window(units, lambda r, m, own=own: own[r][m])  # type: ignore[misc]
    result = judged(script)
    assert weight_names(result) == {"unexplained"}
    assert result.verdict == "fail"


def test_every_name_belongs_to_a_check() -> None:
    assert {name for name in (*SHAPES, *SCALES) if name} <= {name for _, names in CHECKS.values() for name in names}
