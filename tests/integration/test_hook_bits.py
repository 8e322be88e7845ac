"""The counting hook does not change DDP's numbers, to the last bit, at two, three and four ranks."""

import json
from typing import Any

import pytest

from tests.support.stages import LocalRun
from trainer.contract.kinds import StagePlan

pytestmark = pytest.mark.torchrun
LAB = StagePlan(name="lab", title="Lab", entry="tests.support.hook_lab:run", launcher="torchrun")


@pytest.fixture(scope="module", params=[2, 3, 4])
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    world_size: int = request.param
    run = LocalRun.create(tmp_path_factory.mktemp("bits") / "1", "token-parity", world_size=world_size)
    run.plan.append(LAB)
    run.stage("lab")
    found = [json.loads((run.paths.work / f"bits-rank{rank}.json").read_text()) for rank in range(world_size)]
    assert found == [found[0]] * world_size
    return world_size, found[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_are_those_without_the_hook(ended: tuple[int, dict[str, Any]], dtype: str) -> None:
    world_size, digests = ended
    assert digests[f"hook, {dtype}"] == digests[f"plain, {dtype}"]
    assert (digests[f"dividing, {dtype}"] == digests[f"plain, {dtype}"]) is (world_size != 3)
