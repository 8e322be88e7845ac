"""Answers of the API match the documents that describe them: the same members, nulls and order, and nothing else."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ValidationError

from app.db import write_session
from app.documents import Document, to_json
from app.runs.auditlog import AuditList
from app.runs.documents import Move, RunDocument, RunList, RunSummary
from app.runs.kinds import KindList
from app.runs.results.artifacts import ArtifactList
from app.runs.results.checkpoints import CheckpointList
from app.runs.results.compare import Comparison
from app.runs.results.trends import Trend, TrendChecks
from app.runs.telemetry.events import EventItem, EventList, MalformedList
from app.runs.telemetry.logs import LogPiece
from app.runs.telemetry.resources import ResourceList
from app.runs.telemetry.series import MetricList
from app.settings import Settings
from app.sharing.deliveries import DeliveryList
from app.status import StatusDocument
from app.storage.orphans import OrphanList
from app.storage.overview import StorageDocument
from app.storage.retention import Plan
from app.web.status.health import Version
from tests.support.pages_data import add_events, fill
from tests.support.service import Service, running_service
from trainer.contract.events import EVENT_FIELDS
from trainer.contract.result import Result

Filled = tuple[Service, dict[str, int]]
ROUTES: list[tuple[str, type[BaseModel]]] = [
    ("/api/v1/runs", RunList),
    ("/api/v1/runs?limit=1", RunList),
    *((f"/api/v1/runs/{name}", RunDocument) for name in ("PASSED", "FAILED", "RUNNING", "QUEUED")),
    ("/api/v1/runs/PASSED/events", EventList),
    ("/api/v1/runs/PASSED/malformed", MalformedList),
    ("/api/v1/runs/PASSED/metrics", MetricList),
    ("/api/v1/runs/PASSED/resources", ResourceList),
    ("/api/v1/runs/PASSED/logs/0", LogPiece),
    ("/api/v1/runs/PASSED/artifacts", ArtifactList),
    ("/api/v1/runs/PASSED/checkpoints", CheckpointList),
    ("/api/v1/compare?ids=PASSED,FAILED", Comparison),
    ("/api/v1/trends?kind=token-parity", TrendChecks),
    ("/api/v1/trends?kind=token-parity&check=gradient_parity", Trend),
    ("/api/v1/kinds", KindList),
    ("/api/v1/audit", AuditList),
    ("/api/v1/webhooks/deliveries", DeliveryList),
    ("/api/v1/status", StatusDocument),
    ("/api/v1/usage", StorageDocument),
    ("/api/v1/retention?max_runs=1", Plan),
    ("/api/v1/orphans", OrphanList),
    ("/version", Version),
]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("documents"))) as service:
        yield service, fill(service.settings, service.engine)


@pytest.mark.parametrize(("path", "model"), ROUTES)
def test_answer_is_its_document(filled: Filled, path: str, model: type[BaseModel]) -> None:
    service, runs = filled
    for name, number in runs.items():
        path = path.replace(name.upper(), str(number))
    answer = service.http.get(path)
    assert answer.status_code == 200, answer.text
    assert to_json(model.model_validate_json(answer.content)) == to_json(orjson.loads(answer.content))
    route = service.http.get("/openapi.json").json()["paths"][_template(service, path)]["get"]
    schema = route["responses"]["200"]["content"]["application/json"]["schema"]
    assert model.__name__ in str(schema)


def _template(service: Service, path: str) -> str:
    request = service.http.build_request("GET", path)
    for route in service.http.get("/openapi.json").json()["paths"]:
        wanted, given = route.split("/"), request.url.path.split("/")
        if len(wanted) == len(given) and all(
            part in (other, "{run_id}", "{rank}") for part, other in zip(wanted, given, strict=True)
        ):
            return str(route)
    raise AssertionError(path)


def test_result_is_of_the_described_form(filled: Filled) -> None:
    service, runs = filled
    assert Result.model_validate(service.get(f"/runs/{runs['passed']}/result").json()).kind == "token-parity"


def test_every_answer_in_json_is_described(filled: Filled) -> None:
    service, _ = filled
    undescribed = []
    for path, methods in service.http.get("/openapi.json").json()["paths"].items():
        for method, route in methods.items():
            for status, answer in route["responses"].items():
                content = answer.get("content", {}).get("application/json", {})
                if status.startswith("2") and not content.get("schema", "a file"):
                    undescribed.append((method, path))
    assert undescribed == []


def test_every_event_is_what_the_list_says_it_holds(filled: Filled) -> None:
    service, runs = filled
    values: dict[str, Any] = {"step": 3, "text": "x", "values": {"loss": "NaN"}, "pid": 7, "versions": {"torch": "2"}}
    lines = [
        {"type": kind, **{name: values.get(name, "y") for name in fields}} for kind, fields in EVENT_FIELDS.items()
    ]
    with write_session(service.engine) as session:
        add_events(session, runs["broken"], "compare", lines)
    items = service.get(f"/runs/{runs['broken']}/events?limit=1000").json()["items"]
    assert {item["type"] for item in items} == set(EVENT_FIELDS)
    for item in items:
        assert EventItem.model_validate(item).model_dump() == item
    with pytest.raises(ValidationError):
        EventItem.model_validate({name: value for name, value in items[0].items() if name != "rank"})


def test_document_without_a_member_is_refused(filled: Filled) -> None:
    service, _ = filled
    item = service.get("/runs").json()["items"][0]
    assert RunSummary.model_validate(item)["state"] == item["state"]
    with pytest.raises(ValidationError):
        RunSummary.model_validate({name: value for name, value in item.items() if name != "state"})


def test_members_go_by_their_names_in_the_json() -> None:
    move = Move(seq=1, at="now", origin=None, target="queued", reason=None, note="", actor="user")
    assert (move["to"], move["from"], move["seq"]) == ("queued", None, 1)
    for name in ("target", "model_config", "unknown"):
        with pytest.raises(KeyError):
            move[name]
    assert to_json([move]) == b'[{"seq":1,"at":"now","from":null,"to":"queued","reason":null,"note":"","actor":"user"}]'
    with pytest.raises(TypeError):
        to_json(Document)
