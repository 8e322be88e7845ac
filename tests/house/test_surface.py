"""The code uses only declared packages and public names, and its log lines name actions consistently."""

import ast

import pytest

from scripts import surface

PYPROJECT = """
[project]
dependencies = ["SQLAlchemy>=2", "typer", "uvloop"]
[project.optional-dependencies]
parquet = ["pyarrow"]
dev = ["pytest"]
"""


def test_tree_keeps_the_rules() -> None:
    assert surface.breaches() == []


def test_rules_look_at_the_tree() -> None:
    runtime = surface.imported(surface.RUNTIME)
    assert {"torch", "fastapi", "sqlalchemy", "rich", "anyio", "starlette"} <= runtime.keys()
    assert not runtime.keys() & {"pytest", "app", "trainer", "json"}


@pytest.mark.parametrize(
    ("runtime", "elsewhere", "told"),
    [
        ({"sqlalchemy": "a.py", "typer": "a.py"}, {"pytest": "t.py"}, []),
        ({"sqlalchemy": "a.py", "typer": "a.py", "pyarrow": "a.py"}, {}, []),
        ({"sqlalchemy": "a.py", "typer": "a.py", "rich": "b.py"}, {}, ["b.py imports rich, which"]),
        ({"sqlalchemy": "a.py", "typer": "a.py", "pytest": "b.py"}, {}, ["b.py imports pytest, which"]),
        ({"sqlalchemy": "a.py", "typer": "a.py"}, {"PIL": "t.py"}, ["t.py imports PIL, which"]),
        ({"sqlalchemy": "a.py"}, {"typer": "t.py"}, ["declares typer, which nothing imports"]),
    ],
)
def test_undeclared_and_unused_packages_are_found(
    runtime: dict[str, str], elsewhere: dict[str, str], told: list[str]
) -> None:
    found = surface.dependency_problems(PYPROJECT, runtime, elsewhere)
    assert len(found) == len(told)
    assert all(text in problem for text, problem in zip(told, found, strict=True))


def test_unpinned_package_is_found() -> None:
    pins = "# typer==9\nsqlalchemy==2.1\nuvloop==1\npyarrow==2\npytest==3\n"
    assert surface.pin_problems(PYPROJECT, pins) == ["constraints.txt does not pin typer"]
    assert surface.pin_problems(PYPROJECT, pins.replace("# ", "")) == []


@pytest.mark.parametrize(
    "code",
    [
        "from typer import _click",
        "from rich._loop import loop_first",
        "import rich._loop",
        "import torch\ntorch.ops.mkldnn._is_mkldnn_bf16_supported()",
        "response._headers",
        "hasattr(torch.ops.mkldnn, '_convolution_pointwise')",
        "getattr(engine, '_pool')",
    ],
)
def test_private_name_is_found(code: str) -> None:
    assert list(surface.private_names("app/x.py", ast.parse(code), {"_own"})) != []


@pytest.mark.parametrize(
    "code",
    [
        "from typer import Context",
        "import os\nos._exit(1)",
        "row._asdict()",
        "x.__dict__",
        "other._own",
        "from app.runs.store import _anything",
        "getattr(scope, 'path')",
    ],
)
def test_public_and_own_names_are_allowed(code: str) -> None:
    assert list(surface.private_names("app/x.py", ast.parse(code), {"_own"})) == []


def test_own_names_are_found_in_the_tree() -> None:
    tree = ast.parse("class A:\n    def _b(self):\n        self._c = _d = x._e = 1\n")
    assert set(surface.defined(tree)) == {"_b", "_c", "_d"}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("log.info('x', action='run-ended')", ""),
        ("log.info('x', action='run_ended')", "action 'run_ended'"),
        ("log.info('x', action='Ended')", "action 'Ended'"),
        ("log.warning('x')", "without an action"),
        ("log.info('x', **fields)", ""),
        ("self._log('x', action='run_ended')", "action 'run_ended'"),
        ("level('x', action='run_ended')", "action 'run_ended'"),
        ("parser.add_argument('--yes', action='store_true')", ""),
        ("x.info('not a log')", ""),
    ],
)
def test_actions_have_one_spelling(code: str, told: str) -> None:
    found = list(surface.log_problems("app/x.py", ast.parse(code)))
    assert len(found) == bool(told)
    assert told in "".join(found)
