"""The module that repeats the verdict of a stored run."""

from pathlib import Path

import pytest

from app.runs.results.verification import own_verifier
from trainer.contract.config import RunConfig
from trainer.contract.kinds import kinds
from trainer.contract.paths import RunPaths


def folder(root: Path, kind: str) -> Path:
    config = RunConfig(run_id=1, kind=kind, params={}, backend="gloo", device="cpu", datasets_dir="")
    RunPaths(root).config.write_text(config.model_dump_json())
    return root


@pytest.mark.parametrize("kind", sorted(kinds()))
def test_kind_names_its_verifier(tmp_path: Path, kind: str) -> None:
    assert own_verifier(folder(tmp_path, kind)) == (kinds()[kind].verifier or None)


def test_one_kind_brings_its_own() -> None:
    assert [name for name, spec in kinds().items() if spec.verifier] == ["cifar"]


def test_unknown_kind_or_no_configuration(tmp_path: Path) -> None:
    assert own_verifier(tmp_path) is None
    assert own_verifier(folder(tmp_path, "gone")) is None
    RunPaths(tmp_path).config.write_text("{")
    assert own_verifier(tmp_path) is None
