"""Texts of pages: full sentences, titles instead of internal names, correct singulars, and no dead ends."""

import re
from collections.abc import Iterator

import pytest

from app.clock import now
from app.db import write_session
from app.settings import Settings
from tests.support.pages_data import add_events, add_run, add_stages
from tests.support.service import Service, running_service, shown

HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("words"))) as running:
        yield running


@pytest.fixture(scope="module")
def running_run(service: Service) -> int:
    run_id = add_run(service.engine, "running", moves=("starting",), started_at=now())
    add_stages(service.engine, run_id, {"prepare": "succeeded", "distributed": "running"})
    return run_id


def text(service: Service, path: str) -> str:
    """Return the text of a page, without tags and repeated spaces."""
    return " ".join(re.sub(r"<[^>]+>", " ", shown(service.http, path)).split())


def test_unknown_address_is_explained(service: Service) -> None:
    answer = service.http.get("/nothing", headers=HTML)
    assert answer.status_code == 404
    assert "There is nothing at this address" in answer.text
    assert "nothing at this address" in service.get("/nothing").json()["detail"]
    assert "header Allow" in service.http.put("/api/v1/runs").json()["detail"]


def test_running_run_tells_time_so_far(service: Service, running_run: int) -> None:
    took = re.compile(r'<td class="num"><span class="muted">[0-9.]+ s</span></td>')
    assert took.search(service.http.get("/runs", headers=HTML).text)
    assert service.get(f"/runs/{running_run}").json()["took_seconds"] is None


def test_one_run_is_singular(service: Service, running_run: int) -> None:
    words = text(service, "/storage?newest=1")
    assert re.search(r"in \d+ files? of 1 run\b", words)
    assert "1 run protected from removal" in words


def test_ended_run_does_not_say_it_twice(service: Service) -> None:
    passed = add_run(service.engine, "succeeded", verdict="pass", reason="completed")
    assert "State succeeded Backend" in text(service, f"/runs/{passed}")
    cancelled = add_run(service.engine, "cancelled", reason="cancelled_by_user")
    assert "State cancelled: cancelled by user Backend" in text(service, f"/runs/{cancelled}")


def test_stage_alone_shows_no_backend(service: Service) -> None:
    run_id = add_run(service.engine, "succeeded", verdict="pass", reason="completed")
    add_stages(service.engine, run_id, {"prepare": "succeeded"})
    with write_session(service.engine) as session:
        started = {"type": "start", "pid": 7, "device": "cpu"}
        add_events(session, run_id, "prepare", [{**started, "backend": "none"}, {**started, "backend": "gloo"}])
    words = text(service, f"/runs/{run_id}")
    assert "started, pid 7 on cpu, gloo" in words
    assert "on cpu, none" not in words


def test_banner_names_stage_by_its_title(service: Service, running_run: int) -> None:
    stages = service.get(f"/runs/{running_run}").json()["stages"]
    title = next(stage["title"] for stage in stages if stage["name"] == "distributed")
    assert title != "distributed"
    assert re.search(rf"Running stage \d of \d: {title}\s", text(service, f"/runs/{running_run}"))


def test_run_is_launched_again_with_changes(service: Service) -> None:
    params = {"learning_rate": 0.123456789, "share_gpu": True}
    wanted = {"kind": "token-parity", "preset": "quick", "name": "base", "tags": ["a", "b"], "params": params}
    first = service.post("/runs", wanted).json()["id"]
    assert f'href="/launch?like={first}"' not in shown(service.http, f"/runs/{first}")  # not ended
    service.post(f"/runs/{first}/cancel")
    assert f'href="/launch?like={first}"' in service.http.get(f"/runs/{first}", headers=HTML).text
    form = service.http.get(f"/launch?like={first}", headers=HTML).text
    filled = {
        name: value
        for name, value in re.findall(r'<input[^>]* name="([^"]+)"(?: maxlength="200")? value="([^"]+)"', form)
        if name.startswith("param.") or name in ("name", "tags")
    }
    assert filled == {"name": "base", "tags": "a, b", "param.learning_rate": "0.123456789"}
    assert '<option value="true" selected>' in form
    assert service.http.get("/launch?like=99999", headers=HTML).status_code == 404


def test_empty_policy_is_asked_for_a_limit(service: Service) -> None:
    answer = service.http.get("/storage?days=&newest=&most=&kind=", headers=HTML)
    assert answer.status_code == 422
    assert "give at least one limit" in answer.text
    assert "give at least one limit" not in text(service, "/storage?page=1")
