"""Where in a script something happens: the nearest line of the user's, however shallow the stack is."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from trainer.kinds.trace.params import SITE


@pytest.fixture(scope="module")
def places() -> ModuleType:
    path = Path(SITE) / "ddp_audit_probe" / "places.py"
    spec = importlib.util.spec_from_file_location("probe_places", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_line_of_the_caller(places: ModuleType) -> None:
    line = test_line_of_the_caller.__code__.co_firstlineno + 2
    assert places.place(1) == (__file__, line)
    assert places.outline(1)[0] == (__file__, line + 1)


def test_stack_that_is_not_deep_enough_harms_nobody(places: ModuleType) -> None:
    file, _ = places.place(100_000)
    assert file == __file__
    assert places.outline(100_000)[0][0] == __file__
