"""Every piece of code in docs/your-own-code.md runs, and does what the page says."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from app.runs.targets import Catalogue
from tests.support.target_lab import SUMS_SHARDS, audited
from trainer.contract.result import Result
from trainer.contract.targets import BUILT_IN
from trainer.targets.members import OPTIONAL, REQUIRED

pytestmark = pytest.mark.torchrun
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "your-own-code.md").read_text()
BLOCK = re.compile(r"```python\n# (shop/\w+\.py)\n(.*?)```", re.DOTALL)
CLASS = re.compile(r'^class (\w+)[^\n]*:\n    name = "([\w-]+)"', re.MULTILINE)


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Write the page's files and return the targets in them, by name."""
    root = tmp_path_factory.mktemp("page")
    (root / "shop").mkdir()
    found = {}
    for path, text in BLOCK.findall(PAGE):
        (root / path).write_text(text)
        for cls, name in CLASS.findall(text):
            found[name] = f"shop.{Path(path).stem}:{cls}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])))
        yield found


@pytest.fixture(scope="module")
def results(specs: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Result]:
    return audited(tmp_path_factory.mktemp("audits") / "runs", specs)


def test_no_python_on_the_page_is_left_out(specs: Mapping[str, str]) -> None:
    assert PAGE.count("```python") == len(BLOCK.findall(PAGE)) == 8
    assert len(specs) == 7


def test_loop_of_the_page_has_the_mistake_that_it_names(results: Mapping[str, Result]) -> None:
    result = results["shop-tokens"]
    assert result.verdict == "fail"
    assert result.diagnosis is not None
    assert [cause.name for cause in result.diagnosis.causes] == ["mean_of_means"]
    assert "the diagnosis is `mean_of_means`" in PAGE


@pytest.mark.parametrize(
    "name",
    [
        "shop-mended",
        pytest.param("shop-sharded", marks=pytest.mark.skipif(SUMS_SHARDS, reason="the next test")),
        "shop-reduced",
        "shop-optimizer",
        "shop-weighted",
        "shop-auxiliary",
    ],
)
def test_mended_loop_and_engines_pass(results: Mapping[str, Result], name: str) -> None:
    assert results[name].verdict == "pass", [check for check in results[name].checks if not check.passed]


def test_unit_of_weight_is_stated(results: Mapping[str, Result]) -> None:
    assert results["shop-weighted"].summary["unit"] == "class weight"
    assert "class weight" in results["shop-weighted"].limits[0]


def test_commands_of_the_page_find_its_target(specs: Mapping[str, str]) -> None:
    assert 'DDP_AUDIT_TARGETS="shop.target:Tokens"' in PAGE
    entries = Catalogue(specs["shop-tokens"]).entries()
    assert (entries[0].name, entries[0].problem) == ("shop-tokens", "")


def test_page_names_every_member_and_example() -> None:
    for word in (*REQUIRED, *OPTIONAL, *BUILT_IN, "unit", "extra_reduction", "per_batch_statistics"):
        assert f"`{word}" in PAGE, word


@pytest.mark.skipif(not SUMS_SHARDS, reason="a fault of torch 2.8")
def test_sum_instead_of_a_mean_is_named(results: Mapping[str, Result]) -> None:
    diagnosis = results["shop-sharded"].diagnosis
    assert results["shop-sharded"].verdict == "fail"
    assert diagnosis is not None
    assert [cause.name for cause in diagnosis.causes] == ["missing_world_size"]
    assert "only in the type of this run" in diagnosis.suggestion
