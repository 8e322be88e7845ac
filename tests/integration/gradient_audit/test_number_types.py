"""A gradient that is wrong only in the run's own type is diagnosed there; what is only rounding is called rounding."""

from collections.abc import Mapping

import pytest

from tests.support.target_lab import audited
from trainer.contract.result import Result

pytestmark = pytest.mark.torchrun


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Result]:
    specs = {name: f"tests.targets.number_types:TARGETS.{name}" for name in ("only_in_single", "right")}
    # A tolerance that no float32 gradient keeps, so that rounding alone fails too.
    return audited(tmp_path_factory.mktemp("types") / "runs", specs, atol=0.0, rtol=1e-12)


def test_mistake_of_one_type_is_named(results: Mapping[str, Result]) -> None:
    result, diagnosis = results["only_in_single"], results["only_in_single"].diagnosis
    assert diagnosis is not None
    assert (result.verdict, diagnosis.status) == ("fail", "identified")
    assert [cause.name for cause in diagnosis.causes] == ["missing_world_size"]
    assert "In float64 the same windows match; the weights were solved from float32 gradients." in diagnosis.reasoning
    assert "only in the type of this run" in diagnosis.suggestion
    assert not any("rounding" in check.detail for check in result.checks)


def test_rounding_is_no_mistake(results: Mapping[str, Result]) -> None:
    result, diagnosis = results["right"], results["right"].diagnosis
    assert diagnosis is not None
    assert (result.verdict, diagnosis.status, diagnosis.causes) == ("fail", "clean", [])
    assert "rounding" in diagnosis.suggestion
    assert "this is rounding" in next(check.detail for check in result.checks if check.name == "gradient_parity")
