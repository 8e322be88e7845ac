"""The API under requests generated from its description: never a 5xx, no write without the operator's token."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Response
from sqlmodel import func, select

from app.db import read_session
from app.runs.models import AuditEntry, Run
from app.runs.states import Reason, State
from app.settings import Settings
from tests.support.ended import end_run
from tests.support.fuzzing import REFUSED, Answer, draw_and_send, server_errors, unauthorised_writes
from tests.support.service import Service, running_service

OPERATOR, VIEWER = "the-operators-token", "the-viewers-token"
EXAMPLES = 3
PREDICT = ("POST /api/v1/predict", "POST /api/v1/runs/{run_id}/predict")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("fuzz"), token=OPERATOR, viewer_token=VIEWER)
    with running_service(settings) as made:
        end_run(made.engine, settings.runs_dir, name="passed", tags=["a"])
        end_run(made.engine, settings.runs_dir, state=State.FAILED, reason=Reason.RANK_EXIT)
        yield made


@pytest.fixture(scope="module")
def description(service: Service) -> dict[str, Any]:
    with service.client(OPERATOR) as client:
        found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def ask(service: Service, description: dict[str, Any], token: str | None, examples: int = EXAMPLES) -> list[Answer]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return draw_and_send(service.url, description, headers, [1, 2], examples)


def stock(service: Service) -> tuple[int, int]:
    with read_session(service.engine) as session:
        return session.exec(select(func.count()).select_from(Run)).one(), session.exec(
            select(func.count()).select_from(AuditEntry)
        ).one()


def test_description_covers_every_route(service: Service, description: dict[str, Any]) -> None:
    paths = {f"/api/v1{path}" for path in ("/runs", "/runs/{run_id}", "/kinds", "/predict", "/trends", "/retention")}
    assert paths <= description["paths"].keys()


@pytest.mark.parametrize("token", [None, "a-wrong-token", VIEWER], ids=["nobody", "wrong", "viewer"])
def test_nobody_else_breaks_or_writes(service: Service, description: dict[str, Any], token: str | None) -> None:
    before = stock(service)
    answers = ask(service, description, token)
    assert len(answers) > 100
    assert list(server_errors(answers)) == []
    assert list(unauthorised_writes(answers, PREDICT if token == VIEWER else ())) == []
    assert stock(service) == before
    if token != VIEWER:
        api = [answer for answer in answers if answer.label.split()[1].startswith("/api/")]
        assert {answer.status for answer in api} <= (REFUSED if token else REFUSED - {429})


def test_operator_meets_no_server_error(service: Service, description: dict[str, Any]) -> None:
    before = stock(service)
    answers = ask(service, description, OPERATOR, 3 * EXAMPLES)
    assert list(server_errors(answers)) == []
    assert stock(service)[1] > before[1], (
        "the same requests do write with permission: so the refusals above are meaningful"
    )
    assert list(unauthorised_writes(answers, PREDICT)) != []


def test_planted_faults_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = APIRouter(prefix="/api/v1")

    @planted.get("/planted")
    def break_down(number: int = 1) -> Response:
        return Response(f"broke at {number}", status_code=500)

    @planted.post("/open-write")
    def write(number: int = 1) -> dict[str, int]:
        return {"number": number}

    monkeypatch.setattr("app.web.security.access.is_read", lambda _request: True)
    with running_service(Settings(data_dir=tmp_path, token=OPERATOR, public_read=True)) as service:
        service.app.include_router(planted)
        document = service.http.get("/openapi.json").json()
        document["paths"] = {
            path: item for path, item in document["paths"].items() if "planted" in path or "open-" in path
        }
        answers = draw_and_send(service.url, document, {}, [1], 2)
    assert any(line.startswith("GET /api/v1/planted: 500") for line in server_errors(answers))
    assert any(line.startswith("POST /api/v1/open-write: 200") for line in unauthorised_writes(answers, ()))
