"""Every benchmark is found by its runner, loads with what `make bench` installs, and its failure is the runner's."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as runner

ROOT = Path(__file__).resolve().parents[2]


def test_programs_are_benchmarks_and_helpers_are_not() -> None:
    names = runner.names()
    assert {"chaos", "checkpoint", "ingest", "peer", "plain_cifar", "startup"} <= set(names)
    assert not {"machine", "ranks", "chaos_lab", "__main__", "__init__"} & set(names)


def test_every_benchmark_loads() -> None:
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(f'benchmarks.{name}')"
    subprocess.run([sys.executable, "-c", code, *runner.names()], cwd=ROOT, check=True)


@pytest.mark.parametrize(("arguments", "code"), [(["startup", "--help"], 0), (["startup", "--starts", "x"], 1)])
def test_runner_ends_as_the_benchmark_did(arguments: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert ("--starts" in done.stdout, "failed: startup" in done.stderr) == (code == 0, code == 1)


def test_unknown_name_is_told_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nothing"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "choose from" in done.stderr
    assert "chaos" in done.stderr
