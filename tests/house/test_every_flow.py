"""Every route of the API has a command that calls it, and every form of the pages has an equivalent route."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.cli.main import app as cli
from app.main import create_app
from app.settings import Settings
from app.web.http.problems import BASE

ROOT = Path(__file__).resolve().parents[2]
METHODS = {"get": "GET", "download": "GET", "post": "POST", "patch": "PATCH", "delete": "DELETE", "send_file": "POST"}
FOLLOWED = {("GET", "/runs/{}/stream")}
"""Commands follow a run by polling (`logs -f`, `events -f`), which works on the data directory too."""
FORMS = {
    "/login": "",
    "/logout": "",
    "/quick": "run token-parity",
    "/launch": "run KIND",
    "/explain/run": "run token-parity --preset exercise",
    "/runs/bulk": "cancel ID ID, delete ID ID, edit ID ID --add-tag --pin",
    "/runs/{}/cancel": "cancel ID",
    "/runs/{}/retry": "retry ID",
    "/runs/{}/delete": "delete ID",
    "/runs/{}/edit": "edit ID",
    "/classify": "predict IMAGE",
    "/storage/retention": "retention --yes",
    "/storage/orphans": "orphans --yes",
    "/deliveries/{}/redeliver": "redeliver ID",
}
"""The route equivalent to each form of the pages; signing in has none: tokens are settings of the commands."""
CALL = re.compile(r"\.(get|download|post|send_file|patch|delete)\(\s*(?:f?\"(/[^\"]*)\"|(\w+))")
PATH = re.compile(r"\"(/[a-z][^\"\n]*)\"")
FORM = re.compile(r"@router\.post\(\s*\"(/[^\"]*)\"")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("flows")))


def plain(path: str) -> str:
    """Return a path with its parameters blanked, for routes and f-strings alike."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def calls() -> set[tuple[str, str]]:
    """Return (method, path) of every call in the commands; a path in a variable may be any of its function's module."""
    found = set()
    for file in sorted((ROOT / "app" / "cli").glob("*.py")):
        text = file.read_text()
        for method, path, variable in CALL.findall(text):
            paths = PATH.findall(text) if variable else [path]
            found |= {(METHODS[method], plain(item)) for item in paths}
    return found


def described(app: FastAPI) -> set[tuple[str, str]]:
    paths = app.openapi()["paths"]
    return {
        (method.upper(), plain(path.removeprefix(BASE)))
        for path, methods in paths.items()
        for method in methods
        if path.startswith(BASE)
    }


def test_every_route_has_a_command(app: FastAPI) -> None:
    routes = described(app)
    assert len(routes) > 30
    assert routes - calls() == FOLLOWED


def test_missing_command_is_noticed(app: FastAPI) -> None:
    assert ("PUT", "/runs/{}") not in calls()
    app = FastAPI()
    app.add_api_route(f"{BASE}/runs/{{run_id}}/song", lambda: None, methods=["GET"])
    assert described(app) - calls() == {("GET", "/runs/{}/song")}


def forms() -> set[str]:
    """Return the path of every form of the pages that changes something."""
    web = ROOT / "app" / "web"
    texts = [path.read_text() for path in sorted((web / "pages").glob("*.py"))]
    return {plain(path) for text in texts for path in FORM.findall(text)}


def test_every_form_has_a_command() -> None:
    assert forms() == FORMS.keys()
    named = {word.split()[0] for words in FORMS.values() for word in words.replace(" and ", ", ").split(", ") if words}
    commands = {command.name or command.callback.__name__ for command in cli.registered_commands if command.callback}
    assert named <= commands
