"""Input from strangers and runs that could break an answer: cursors, tags, file names, JSON that grows."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.runs.telemetry.cursor import Cursor, decode
from app.settings import Settings
from tests.support.pages_data import fill
from tests.support.service import Service, running_service
from trainer.contract.paths import RunPaths

Filled = tuple[Service, dict[str, int]]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("hostile"))
    with running_service(settings) as service:
        yield service, fill(settings, service.engine)


def artifact(filled: Filled, name: bytes, data: bytes = b"x") -> Path:
    service, runs = filled
    root = RunPaths(service.settings.runs_dir / str(runs["passed"])).artifacts
    path = Path(os.fsdecode(os.fsencode(root) + b"/" + name))
    path.write_bytes(data)
    return path


def preview(filled: Filled, name: str) -> httpx.Response:
    service, runs = filled
    return service.http.get(f"/runs/{runs['passed']}/preview", params={"name": name})


def packed(plain: bytes) -> str:
    return base64.urlsafe_b64encode(plain).decode().rstrip("=")


@pytest.mark.parametrize(
    "plain",
    [
        b"[1,1e999,0,-1,0,[],0]",
        b"[1,-2,0,-1,0,[],0]",
        b"[1,9223372036854775808,0,-1,0,[],0]",
        b"[1,true,0,-1,0,[],0]",
        b'[1,"1",0,-1,0,[],0]',
        b"[1,0,0,0,1,[1e999],0]",
        b"[1,0,0,0,1,[-2],0]",
        b"[1,0,0,0,1,[1180591620717411303424],0]",
        b"[2,0,0,-1,0,[],0]",
        b"[" * 15_000,
        b'[0,{"a":' * 1_500,
    ],
)
def test_forged_place_is_refused(filled: Filled, plain: bytes) -> None:
    service, runs = filled
    path = f"/runs/{runs['passed']}/live"
    for arguments in ({"params": {"after": packed(plain)}}, {"headers": {"Last-Event-ID": packed(plain)}}):
        answer = service.http.get(path, **arguments)  # type: ignore[arg-type]
        assert answer.status_code == 422
        assert answer.json()["code"] == "invalid_cursor"


def test_largest_place_is_a_place() -> None:
    for number in (0, 2**63 - 1):
        place = Cursor(event=number, offsets=(number,))
        assert decode(place.encode()) == place


@pytest.mark.parametrize("tag", ["x" * 140_000, '"' + "x" * 140_000])
def test_endless_tag_is_refused(filled: Filled, tag: str) -> None:
    service, runs = filled
    run_id = runs["cancelled"]
    forms: dict[str, dict[str, Any]] = {
        f"/runs/{run_id}/edit": {"tags": tag},
        "/runs/bulk": {"action": "tag", "run": run_id, "tags": tag},
    }
    for path, form in forms.items():
        answer = service.http.post(path, data=form)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "tags"
    assert service.get(f"/runs/{run_id}").json()["tags"] == []


def test_name_that_is_no_text_spoils_no_list(filled: Filled) -> None:
    service, runs = filled
    artifact(filled, b"bad\xff.txt")
    artifact(filled, "gut ü.txt".encode())
    names = [item["path"] for item in service.get(f"/runs/{runs['passed']}/artifacts").json()["items"]]
    assert "gut ü.txt" in names
    assert not any(name.startswith("bad") for name in names)
    text = service.http.get(f"/runs/{runs['passed']}", headers={"Accept": "text/html"}).text
    assert "gut ü.txt" in text


def test_json_grows_only_so_far(filled: Filled) -> None:
    deep = "[" * 900 + "0," * 90_000 + "0" + "]" * 900
    artifact(filled, b"deep.json", deep.encode())
    shown = preview(filled, "deep.json")
    assert shown.status_code == 200
    assert len(shown.text) < len(deep) + 1_000
    flat = json.dumps({"values": list(range(20_000))})
    artifact(filled, b"flat.json", flat.encode())
    assert "indented for readability" in preview(filled, "flat.json").text


@pytest.mark.parametrize("data", [b'{"a": "\\ud800"}', b'{"\\udfff": 1}'])
def test_half_a_character_is_shown_as_written(filled: Filled, data: bytes) -> None:
    artifact(filled, b"half.json", data)
    shown = preview(filled, "half.json")
    assert shown.status_code == 200
    assert "\\ud" in shown.text
