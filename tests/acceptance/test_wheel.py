"""The wheel holds the whole product: installed in an empty environment it serves and audits in any folder."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import httpx
import pytest

from scripts import house
from scripts.assets import FILES
from scripts.surface import plain
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
OURS = ("app", "migrations", "trainer", "worker")
DECOYS = (*OURS, "templates")
LINKED = re.compile(r'(?:href|src)="(/static/[^"]+)"')

pytestmark = pytest.mark.torchrun


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(["make", "wheel", f"DIST={folder}", f"PYTHON={sys.executable}"], cwd=ROOT, check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command of a separate environment that shares only the product's dependencies with this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "install", "--no-deps", "--no-index"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # Elsewhere and without PYTHONPATH: pip would take the checkout for the installed product.
    subprocess.run([*pip, str(wheel)], check=True, cwd=folder, env=outside)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    shared = {str(distribution(plain(item)).locate_file("")) for item in project["dependencies"]}
    (packages / "dependencies.pth").write_text("\n".join(sorted(shared)))
    return folder / "bin" / "ddp-audit"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a working folder whose own `app`, `trainer` ... must never be taken for the product's."""
    made = tmp_path_factory.mktemp("anywhere")
    for name in DECOYS:
        (made / name).mkdir()
        (made / name / "__init__.py").write_text("raise SystemExit('a module of the working folder was imported')\n")
    return made


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    left_out = ("DDP_AUDIT_", "PYTHON", "VIRTUAL_ENV", "XDG_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    home = tmp_path_factory.mktemp("home")
    return clean | {"HOME": str(home), "XDG_DATA_HOME": str(home / "data")}


@pytest.fixture(scope="module")
def service(command: Path, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    process = subprocess.Popen(
        [str(command), "serve", "--port", "0"], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        line = next((line for line in process.stderr if "serves http" in line), None)
        assert line is not None, "the installed service did not start"
        yield line.split("serves ")[1].split("/ (")[0]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def tracked(*folders: str) -> set[str]:
    names = (path.relative_to(ROOT).as_posix() for path in house.tracked())
    return {name for name in names if name.partition("/")[0] in folders}


def test_wheel_holds_everything_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = tracked(*OURS) | {f"app/{name}" for name in tracked("templates")}
    expected |= {f"app/static/vendor/{name}" for name in FILES.values()}
    assert "app/templates/pages/runs/show.html" in expected
    assert held == expected


def test_folder_would_pass_for_the_product(command: Path, folder: Path, environment: dict[str, str]) -> None:
    argv = [str(command.with_name("python")), "-m", "app.cli.main", "--version"]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "a module of the working folder was imported" in done.stderr


def test_pages_come_with_their_files(service: str, environment: dict[str, str]) -> None:
    seen = set()
    for path in ("/", "/launch", "/explain", "/docs"):
        page = httpx.get(service + path, headers={"Accept": "text/html"})
        assert page.status_code == 200, path
        linked = set(LINKED.findall(page.text))
        assert linked, path
        seen |= linked
    assert {Path(httpx.URL(address).path).suffix for address in seen} >= {".css", ".js", ".svg"}
    for address in seen:
        answer = httpx.get(service + address)
        assert (answer.status_code, "?v=0" in address) == (200, False), address
        assert answer.content
    assert httpx.get(f"{service}/static/css/absent.css").status_code == 404


def test_audit_passes_in_any_folder(service: str, command: Path, folder: Path, environment: dict[str, str]) -> None:
    before = sorted(folder.rglob("*"))
    until(lambda: httpx.get(f"{service}/readyz").status_code == 200, "the worker has listed its devices", seconds=90)
    argv = [str(command), "run", "token-parity", "--json"]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert (run["state"], run["verdict"]) == ("succeeded", "pass")
    data = Path(environment["XDG_DATA_HOME"]) / "ddp-audit"
    plan = json.loads(next((data / "runs" / str(run["id"])).glob("*/attempt_1/plan.json")).read_text())
    assert plan["argv"][0] == str(command.with_name("python"))
    assert str(ROOT) not in json.dumps(plan)
    assert sorted(folder.rglob("*")) == before
    page = httpx.get(f"{service}/runs/{run['id']}", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert "gradient_parity" in page.text
