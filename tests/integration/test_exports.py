"""Runs as files over HTTP: the list with its filters and without its limit, checks of all, tables of one run."""

import csv
import io
import sys
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, insert, update
from sqlmodel import col, func, select

from app.clock import now
from app.db import create_database_engine, read_session, write_session
from app.runs.derived import RunFacts
from app.runs.exports.run import Format
from app.runs.exports.runlist import list_pieces
from app.runs.models import Run, RunTag
from app.runs.ordering import Order
from app.runs.results.trends import fill_checks
from app.runs.store import PAGE_LIMIT, RunFilters
from app.schema import migrate
from app.settings import Settings
from tests.support.ended import make_result as judged
from tests.support.pages_data import add_events, add_run, add_usage, save_result
from tests.support.results import make_result
from tests.support.service import Service, running_service
from trainer.contract.result import Check

parquet = pytest.importorskip("pyarrow.parquet")

MANY = 2 * PAGE_LIMIT + 7
HEADS = {
    "runs": "id,name,tags,notes,pinned,kind,preset,state,reason,verdict,created_at,started_at,finished_at,"
    "took_seconds,device,backend,retry_of,params",
    "checks": "run_id,run_name,kind,preset,verdict,finished_at,check,title,passed,measured,limit,relation,strict,unit,"
    "margin",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("exports"))) as made:
        yield made


@pytest.fixture(scope="module")
def ids(service: Service) -> dict[str, int]:
    engine, settings = service.engine, service.settings
    add_many(engine, MANY)
    passed = add_run(
        engine, "succeeded", verdict="pass", name="=cmd()", tags=["a", "b,c"], notes="one\ntwo", pinned=True
    )
    save_result(settings, passed, make_result())
    odd = add_run(engine, "succeeded", verdict="inconclusive", name="odd")
    awkward = Check(name="awkward", title="Awkward", passed=None, measured="NaN", limit=2.0)
    save_result(settings, odd, judged(awkward))
    failed = add_run(engine, "succeeded", verdict="fail", params={"seed": 48})
    save_result(settings, failed, make_result(error=0.5))
    kept = add_run(engine, "succeeded", verdict="pass", name="kept")
    save_result(settings, kept, make_result())
    read_one(engine, settings.runs_dir, kept)
    (settings.runs_dir / str(kept) / "result.json").unlink()
    crashed = add_run(engine, "failed", reason="rank_exit")
    add_usage(engine, crashed, "distributed", gpu=True)
    with write_session(engine) as session:
        values = {"loss": "NaN", "rate": None, "accuracy": 0.5}
        add_events(session, crashed, "distributed", [{"type": "metrics", "step": 3, "values": values}])
    return {"passed": passed, "odd": odd, "failed": failed, "kept": kept, "crashed": crashed}


def add_many(engine: Engine, count: int) -> None:
    row: dict[str, Any] = {"kind": "cifar", "params": {}, "launch": {}, "gpus": [], "state": "cancelled"}
    with write_session(engine) as session:
        session.execute(insert(Run), [row | {"name": f"run {i}", "created_at": now()} for i in range(count)])
        first = (session.scalar(select(func.max(Run.id))) or 0) - count
        session.execute(insert(RunTag), [{"run_id": first + i + 1, "tag": "even"} for i in range(1, count, 2)])


def read_one(engine: Engine, runs_dir: Path, run_id: int) -> None:
    """Store the checks of one run in the database, and leave those of the others in their files."""
    fill_checks(engine, runs_dir)
    with write_session(engine) as session:
        session.execute(update(RunFacts).where(col(RunFacts.run_id) != run_id).values(checks_read=False))


def export(service: Service, path: str = "/runs/export", **params: Any) -> httpx.Response:
    answer = service.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer


def rows(answer: httpx.Response) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(answer.text)))


def table(answer: httpx.Response) -> Any:
    return parquet.read_table(io.BytesIO(answer.content))


def test_list_export_has_no_limit(service: Service, ids: dict[str, int]) -> None:
    answer = export(service, format="csv")
    numbers = [int(row["id"]) for row in rows(answer)]
    assert numbers == list(range(MANY + 5, 0, -1))
    assert answer.headers["content-disposition"] == 'attachment; filename="runs.csv"'
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"


def test_json_export_is_the_list(service: Service, ids: dict[str, int]) -> None:
    exported = export(service).json()["items"]
    page = service.get("/runs", params={"limit": 200}).json()["items"]
    assert exported[:200] == page
    assert len(exported) == MANY + 5


@pytest.mark.parametrize(
    "filters",
    [
        {"state": "failed"},
        {"tag": "even", "q": "run 1"},
        {"verdict": ["pass", "fail"], "sort": "oldest"},
        {"kind": "cifar", "sort": "oldest"},
        {"pinned": "true"},
        {"q": "no such run"},
    ],
    ids=str,
)
def test_filters_are_those_of_the_list(service: Service, ids: dict[str, int], filters: dict[str, Any]) -> None:
    found: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        page = service.get("/runs", params={**filters, "limit": 200, **cursor}).json()
        found += [run["id"] for run in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert [int(row["id"]) for row in rows(export(service, format="csv", **filters))] == found
    assert table(export(service, format="parquet", **filters))["id"].to_pylist() == found


@pytest.mark.parametrize(
    "params", [{"state": "asleep"}, {"sort": "sideways"}, {"format": "xls"}, {"table": "metrics"}, {"pinned": "maybe"}]
)
def test_refusal_names_the_field(service: Service, params: dict[str, str]) -> None:
    answer = service.get("/runs/export", params=params)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == next(iter(params))


def test_export_is_no_run_number(service: Service) -> None:
    assert service.get("/runs/export").status_code == 200
    assert service.get("/runs/exports").status_code == 422
    assert service.get("/runs/export/export").status_code == 422


def test_cells_are_harmless_and_whole(service: Service, ids: dict[str, int]) -> None:
    [row] = rows(export(service, format="csv", q=str(ids["passed"]), verdict="pass"))
    assert (row["name"], row["tags"], row["notes"], row["pinned"]) == ("'=cmd()", 'a, "b,c"', "one\ntwo", "true")
    assert '"seed":47' in row["params"]
    assert row["took_seconds"] == "41.3"
    exact = table(export(service, format="parquet", verdict="pass", q="=cmd"))
    assert exact["name"].to_pylist() == ["=cmd()"]
    assert exact["tags"].to_pylist() == [["a", "b,c"]]
    moment: datetime = exact["finished_at"][0].as_py()
    assert moment.tzinfo is not None
    assert moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") == row["finished_at"]


def test_checks_of_all_runs(service: Service, ids: dict[str, int]) -> None:
    found = rows(export(service, format="csv", table="checks", sort="oldest"))
    numbers = list(dict.fromkeys(int(row["run_id"]) for row in found))
    assert numbers == [ids["passed"], ids["odd"], ids["failed"], ids["kept"]]
    parity = {int(row["run_id"]): row for row in found if row["check"] == "gradient_parity"}
    assert [parity[number]["passed"] for number in numbers if number != ids["odd"]] == ["true", "false", "true"]
    assert float(parity[ids["failed"]]["margin"]) == pytest.approx(0.5 / float(parity[ids["failed"]]["limit"]))
    read = {
        row["check"]: (row["relation"], row["strict"], row["margin"])
        for row in found
        if int(row["run_id"]) == ids["passed"]
    }
    assert read["worked_example"] == ("equal", "false", "")
    assert read["negative_control"] == ("at_least", "true", "")
    assert read["gradient_parity"][:2] == ("at_most", "false")
    of_kept = [row["check"] for row in found if int(row["run_id"]) == ids["kept"]]
    of_failed = [row["check"] for row in found if int(row["run_id"]) == ids["failed"]]
    assert of_kept == of_failed == sorted(of_failed)


def test_nan_and_null_stay_apart(service: Service, ids: dict[str, int]) -> None:
    awkward = next(item for item in export(service, table="checks").json()["items"] if item["check"] == "awkward")
    assert (awkward["passed"], awkward["measured"], awkward["limit"], awkward["margin"]) == (None, "NaN", 2.0, None)
    found = table(export(service, format="parquet", table="checks"))
    place = found["check"].to_pylist().index("awkward")
    assert str(found["measured"][place].as_py()) == "nan"
    assert found["margin"][place].as_py() is None
    assert found["passed"][place].as_py() is None


@pytest.mark.parametrize("name", HEADS)
def test_empty_list_keeps_its_columns(service: Service, ids: dict[str, int], name: str) -> None:
    nothing = {"table": name, "q": "no such run"}
    assert export(service, format="csv", **nothing).text == HEADS[name] + "\n"
    assert export(service, **nothing).json() == {"items": []}
    empty, full = (table(export(service, format="parquet", **{**nothing, "q": q})) for q in ("no such run", ""))
    assert empty.num_rows == 0
    assert empty.schema == full.schema
    assert ",".join(empty.column_names) == HEADS[name]


def test_resources_of_one_run(service: Service, ids: dict[str, int]) -> None:
    path = f"/runs/{ids['crashed']}/export"
    found = rows(export(service, path, format="csv", table="resources"))
    assert len(found) == 8
    assert [row["cpu_percent"] for row in found[:4]] == ["", "75.0", "75.0", "75.0"]
    assert {row["gpu_percent"] for row in found} == {"87.0"}
    exact = table(export(service, path, format="parquet", table="resources"))
    moments = exact["t"].to_pylist()
    assert (moments[1] - moments[0]).total_seconds() == pytest.approx(2, abs=0.002)
    assert float(found[0]["t"]) == pytest.approx(moments[0].timestamp(), abs=1e-3)
    assert exact["rss_bytes"].to_pylist()[0] == 100 << 20
    document = export(service, path).json()
    assert document["resources"] == service.get(f"/runs/{ids['crashed']}/resources").json()


def test_metrics_of_one_run(service: Service, ids: dict[str, int]) -> None:
    path = f"/runs/{ids['crashed']}/export"
    found = table(export(service, path, format="parquet"))
    assert found["key"].to_pylist() == ["loss", "rate", "accuracy"]
    assert found["value"].null_count == 1
    assert found["t"][0].as_py().tzinfo is UTC or found["t"].type.tz == "UTC"
    assert found["step"].to_pylist() == [3, 3, 3]


def test_unknown_things_are_not_found(service: Service, ids: dict[str, int]) -> None:
    assert service.get("/runs/9999/export", params={"format": "parquet"}).status_code == 404
    for form in ("csv", "parquet"):
        answer = service.get(f"/runs/{ids['crashed']}/export", params={"format": form, "table": "checks"})
        assert (answer.status_code, answer.json()["code"]) == (404, "no_result")


def test_missing_pyarrow_is_told(service: Service, ids: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for path in ("/runs/export", f"/runs/{ids['passed']}/export"):
        answer = service.get(path, params={"format": "parquet"})
        assert (answer.status_code, answer.json()["code"]) == (406, "parquet_unavailable")
        assert "ddp-audit[parquet]" in answer.json()["detail"]
        assert service.get(path, params={"format": "csv"}).status_code == 200


def peak(engine: Engine, runs_dir: Path, form: Format) -> int:
    """Return the peak memory while every run is written."""
    tracemalloc.start()
    with read_session(engine) as session:
        for _piece in list_pieces(session, runs_dir, RunFilters(), Order.NEWEST, form=form, table="runs"):
            pass
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return held


def test_memory_does_not_grow_with_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.runs.exports.tables.CSV_ROWS", PAGE_LIMIT)
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    engine = create_database_engine(settings)
    add_many(engine, 10)
    peak(engine, tmp_path, "csv")
    add_many(engine, 3 * PAGE_LIMIT)
    few = peak(engine, tmp_path, "csv")
    add_many(engine, 6 * PAGE_LIMIT)
    many = peak(engine, tmp_path, "csv")
    engine.dispose()
    assert many < 1.2 * few
