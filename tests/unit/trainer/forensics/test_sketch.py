"""A sketch is linear, the same in every process, keeps weights exact, and still shows what is not a weighting."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.forensics.evidence import Part, StepEvidence
from trainer.forensics.sketch import CHUNK, Sketch
from trainer.forensics.solve import solve
from trainer.forensics.system import System

SIZES = {"large": 5000, "small": 7}


def gradient(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, generator=generator, dtype=torch.float64) for name, size in SIZES.items()}


def system(weights: list[float], seed: int, buckets: int, noise: float) -> System:
    sketch = Sketch(buckets=buckets)
    parts = [gradient(seed + place) for place in range(len(weights))]
    observed = {
        name: sum((w * part[name] for w, part in zip(weights, parts, strict=True)), torch.zeros(size).double())
        + noise * gradient(seed + 1000)[name]
        for name, size in SIZES.items()
    }
    return System.of(
        StepEvidence(
            step=1,
            world_size=1,
            parts=[
                Part(kind="units", rank=0, micro_batch=place, units=1, gradient=sketch.of(part))
                for place, part in enumerate(parts)
            ],
            observed=[sketch.of(observed)],
        )
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=12), st.integers(0, 2**31))
def test_weights_stay_exact(weights: list[float], seed: int) -> None:
    made = system(weights, seed, buckets=64, noise=0.0)
    fit = solve(made, made.names, ("units",), 1e-6)
    largest = max(1e-3, *map(abs, weights))
    assert torch.allclose(fit.weights[:, 0], torch.tensor(weights, dtype=torch.float64), rtol=0, atol=1e-9 * largest)
    assert float(fit.shares.max()) < 1e-9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 3), min_size=1, max_size=12), st.integers(0, 2**31))
def test_residual_still_shows(weights: list[float], seed: int) -> None:
    made = system(weights, seed, buckets=64, noise=1e-3)
    fit = solve(made, made.names, ("units",), 1e-6)
    assert fit.residual > 1e-5
    assert float(fit.shares.max()) > 1e-5


def test_small_parameters_stay_as_they_are() -> None:
    found = Sketch(buckets=64).of(gradient(1))
    assert torch.equal(found["small"], gradient(1)["small"])
    assert found["large"].shape == (63,)


def test_sketch_is_linear_across_chunks() -> None:
    sketch, size = Sketch(buckets=16), 2 * CHUNK + 3
    one, other = torch.randn(size), torch.randn(size)
    both = sketch.tensor("p", one.double() + 2 * other.double())
    torch.testing.assert_close(both, sketch.tensor("p", one) + 2 * sketch.tensor("p", other), rtol=1e-12, atol=1e-9)


def test_signs_are_even_in_every_bucket() -> None:
    sums = Sketch(buckets=9).tensor("p", torch.ones(90_000))
    assert float(sums.abs().max()) < 500  # 10,000 signs each
    assert float(sums.abs().min()) > 0


def test_sparse_matrices_keep_their_rank() -> None:
    # Only one input was active: all components are a power of two apart.
    sketch, parts = Sketch(buckets=64), []
    for place in range(8):
        matrix = torch.zeros(256, 128, dtype=torch.float64)
        matrix[:, 5] = torch.randn(256, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
        parts.append(sketch.tensor("p", matrix))
    assert int(torch.linalg.matrix_rank(torch.stack(parts))) == 8


@pytest.mark.parametrize("change", [{"seed": 1}, {"name": "q"}])
def test_other_seeds_and_names_give_other_maps(change: dict[str, object]) -> None:
    value = torch.ones(100, dtype=torch.float64)
    one = Sketch(buckets=8).tensor("p", value)
    other = Sketch(buckets=8, seed=int(str(change.get("seed", 0)))).tensor(str(change.get("name", "p")), value)
    assert not torch.equal(one, other)


def test_another_process_makes_the_same_sketch() -> None:
    program = (
        "import torch; from trainer.forensics.sketch import Sketch; "
        "print(Sketch(buckets=8).tensor('p', torch.arange(100.0)).tolist())"
    )
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert seen.stdout.strip() == str(Sketch(buckets=8).tensor("p", torch.arange(100.0)).tolist())
