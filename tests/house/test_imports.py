"""Which process loads what: web, worker and command start without torch."""

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    """Return the modules loaded by a fresh interpreter after `statement`."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return set(output.strip().strip("[]").replace('"', "").split(", "))


@pytest.mark.parametrize(
    "statement",
    [
        "from app.main import create_app; from app.settings import load_settings; create_app(load_settings())",
        "import worker.loop",
        "import app.cli.main",
        "from trainer.contract.kinds import kinds; kinds()",
        "import trainer.entry",
    ],
)
def test_starts_without_torch(statement: str) -> None:
    loaded = modules_after(statement)
    assert "sys" in loaded
    assert not loaded & {"torch", "torchvision", "matplotlib"}


def test_probe_does_load_torch() -> None:
    assert "torch" in modules_after("import torch")


@pytest.mark.parametrize("module", ["trainer.entry", "trainer.contract.kinds"])
def test_trainer_knows_no_app(module: str) -> None:
    loaded = modules_after(f"import {module}")
    assert not {name for name in loaded if name.split(".")[0] in {"app", "worker", "sqlmodel", "fastapi"}}
