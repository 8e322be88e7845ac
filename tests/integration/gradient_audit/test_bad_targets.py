"""Targets that break a rule: the failure of the run names the member, the rank, and what was expected.

Public cases among them: B6 (`passes_differ`, `accumulate_leaves`), E1 (`count_zero`: no rank has anything to learn
from), E2 (`nan_gradient`) and E3 (`one_sided_branch`).
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.results import saved_result
from tests.support.target_lab import KIND, ROOT
from tests.targets.faults import ALL
from trainer.contract.config import RunConfig
from trainer.contract.files import write_json_atomically
from trainer.contract.kinds import kinds, resolve_params
from trainer.contract.paths import RunPaths
from trainer.contract.targets import VARIABLE
from worker.facts import gather
from worker.outcome import Outcome, judge

pytestmark = pytest.mark.torchrun
WORDS: dict[str, tuple[str, int | None, str]] = {
    "build_raises": ("inspect", 1, "member build_model on rank 1: raised ValueError: no such file: weights.pt"),
    "build_returns_list": (
        "inspect",
        None,
        "member build_model on rank {rank}: returned list; expected a torch.nn.",
    ),
    "names_differ": ("inspect", None, "on rank 1: parameter 0 is v, on rank 0 it is w; expected the same names"),
    "shapes_differ": (
        "inspect",
        None,
        "on rank 1: v is float32 of shape (41,), on rank 0 it is float32 of",
    ),
    "window_raises": ("inspect", 1, "member window on rank 1 in step 0: raised ValueError: shard 1 is missing"),
    "window_is_dict": ("inspect", None, "member window on rank {rank} in step 0: returned dict; expected a list"),
    "window_is_empty": ("inspect", 1, "member window on rank 1 in step 0: returned no micro-batch"),
    "passes_differ": ("inspect", None, "on rank 1 in step 0: returned 2 micro-batches, rank 0 has 3; every rank needs"),
    "window_moves_model": ("inspect", 1, "member window on rank 1 in step 0: changed the model; it may only return"),
    "count_negative": ("inspect", 1, "member count on rank 1 in step 0: returned -1; expected a finite number of at"),
    "count_text": ("inspect", None, "member count on rank {rank} in step 0: returned str 'three'; expected a number"),
    "count_nan": ("inspect", None, "member count on rank {rank} in step 0: returned nan; expected a finite number"),
    "count_zero": ("inspect", None, "member count in step 0: the counts of all ranks add up to 0"),
    "ids_number": ("inspect", None, "member sample_ids on rank {rank} in step 0: returned int '7'; expected a list"),
    "loss_vector": (
        "reference",
        0,
        "member loss_sum on rank 0 in step 0: returned a tensor of shape (5,); expected",
    ),
    "loss_float": (
        "reference",
        0,
        "member loss_sum on rank 0 in step 0: returned float '1.0'; expected a scalar",
    ),
    "loss_detached": ("reference", 0, "member loss_sum on rank 0 in step 0: does not depend on the parameters"),
    "loss_nan": ("reference", 0, "member loss_sum on rank 1 in step 0: returned nan; expected a finite number"),
    "loss_random": ("reference", 0, "set dropout to 0 in build_model"),
    "window_random": ("reference", 0, "member window on rank 1 in step 0: gave another micro-batch 0"),
    "groups_nonsense": ("reference", 0, "member param_groups on rank 0: returned something else than groups"),
    "wrap_nothing": ("audit", None, "member wrap on rank {rank}: returned nothing; expected a torch.nn.Module"),
    "wrap_adds": ("audit", None, "member wrap on rank {rank}: changed the names of parameters (more)"),
    "accumulate_raises": ("audit", 1, "member accumulate on rank 1 in step 0: raised ValueError: scaler is None"),
    "accumulate_text": ("audit", None, "member accumulate on rank {rank} in step 0: returned str 'done'; expected"),
    "accumulate_steps": ("audit", None, "member accumulate on rank {rank} in step 0: changed the parameters"),
    "accumulate_leaves": ("audit", None, "changed the number of participants from 2 to 0; it must stay the same"),
    "one_sided_branch": (
        "audit",
        1,
        "left DDP's reduction unfinished, and other ranks wait for it: no gradient reached w in",
    ),
}
"""Stage that fails, rank that is named (None: any, all of them see it), and what the last line contains."""
GOES_ON = "nan_gradient"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bad")
    names = [target.name for target in ALL] + [GOES_ON]
    for name in names:
        params = resolve_params(kinds()[KIND], None, {"device": "cpu", "target": name, "steps": 2})
        config = RunConfig(
            run_id=1, kind=KIND, params=params.model_dump(mode="json"), backend="gloo", device="cpu", datasets_dir="/"
        )
        (root / name).mkdir()
        write_json_atomically(root / name / "config.json", config.model_dump(mode="json"))
    specs = ",".join(f"tests.targets.faults:TARGETS.{name}" for name in names)
    subprocess.run(
        [sys.executable, "-m", "tests.support.target_forks", str(root), *names],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", VARIABLE: specs},
        check=True,
        timeout=280,
    )
    return root


@pytest.fixture(scope="module")
def outcomes(root: Path) -> Mapping[str, tuple[str, Outcome]]:
    """Return the last stage that ran, and the outcome of the run, by target."""
    found = {}
    for target in ALL:
        paths = RunPaths(root / target.name)
        stage = next(name for name in ("compare", "audit", "reference", "inspect") if (paths.root / name).is_dir())
        launcher, expected = ("torchrun", 2) if stage in ("audit", "inspect") else ("python", 1)
        found[target.name] = (stage, judge(gather(paths, stage, 1, launcher=launcher, expected=expected)))
    return found


def test_every_fault_has_its_words() -> None:
    assert [target.name for target in ALL] == list(WORDS)


@pytest.mark.parametrize(("name", "known"), WORDS.items())
def test_failure_names_member_rank_and_expectation(
    outcomes: Mapping[str, tuple[str, Outcome]], name: str, known: tuple[str, int | None, str]
) -> None:
    stage, outcome = outcomes[name]
    wanted, rank, text = known
    assert outcome.failure is not None
    assert stage == wanted
    assert text.format(rank=outcome.failure["rank"]) in outcome.failure["last_line"]
    assert outcome.failure["last_line"] in outcome.diagnosis
    assert f"target {name!r}" in outcome.failure["last_line"]
    if rank is not None:
        assert outcome.failure["rank"] == rank
    assert outcome.reason == "rank_exit"


def test_gradient_that_is_not_a_number_is_a_verdict(root: Path) -> None:
    result = saved_result(RunPaths(root / GOES_ON).result)
    parity = next(check for check in result.checks if check.name == "gradient_parity")
    assert (result.verdict, parity.passed, parity.measured) == ("fail", False, "NaN")
    assert "step 0, rank 1: 1" in parity.detail
    assert "rank 0" not in parity.detail.partition("outside:")[2]
