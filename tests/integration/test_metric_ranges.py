"""A range of steps over REST: down-sampled after the selection, refused if invalid."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db import write_session
from app.settings import Settings
from tests.support.pages_data import add_metric, add_run
from tests.support.service import Service, running_service

COUNT = 30_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("ranges")
    with running_service(Settings(data_dir=folder)) as made:
        yield made


@pytest.fixture(scope="module")
def run_id(service: Service) -> int:
    made = add_run(service.engine, "running", moves=("starting",))
    with write_session(service.engine) as session:
        for start in range(0, COUNT, 1000):
            steps = [float(step) for step in range(start, start + 1000)]
            values = [math.nan if step == 15_500 else math.sin(step) for step in steps]
            add_metric(session, made, "train", 0, values, steps=steps)
        add_metric(session, made, "train", 1, [5.0, 6.0, 7.0], steps=[10.0, 12.0, 10.0])
    return made


def test_range_brings_every_point(service: Service, run_id: int) -> None:
    query = {"from": 15_400, "to": 15_600, "max_points": 400}
    (series,) = service.get(f"/runs/{run_id}/metrics", params=query).json()["series"]
    assert series["steps"] == [float(step) for step in range(15_400, 15_601)]
    assert series["values"][100] == "NaN"
    assert (series["points"], series["thinned"]) == (201, False)
    whole = service.get(f"/runs/{run_id}/metrics", params={"max_points": 400}).json()["series"][0]
    assert (whole["points"], whole["thinned"]) == (COUNT, True)
    assert sum(15_400 <= step <= 15_600 for step in whole["steps"]) < 20


def test_long_range_is_thinned(service: Service, run_id: int) -> None:
    query = {"from": 1000.5, "max_points": 100}
    series = service.get(f"/runs/{run_id}/metrics", params=query).json()["series"][0]
    assert len(series["steps"]) <= 100
    assert (series["steps"][0], series["steps"][-1]) == (1001.0, COUNT - 1.0)
    assert "NaN" in series["values"]


def test_repeated_steps_stay_in_range(service: Service, run_id: int) -> None:
    query = {"rank": 1, "to": 11}
    (series,) = service.get(f"/runs/{run_id}/metrics", params=query).json()["series"]
    assert (series["steps"], series["values"]) == ([10.0, 10.0], [5.0, 7.0])
    outside = service.get(f"/runs/{run_id}/metrics", params={"from": 1e9}).json()
    assert (outside["keys"], outside["series"]) == (["loss"], [])


@pytest.mark.parametrize(
    ("query", "field"), [({"from": 5, "to": 4}, "from"), ({"to": "NaN"}, "to"), ({"from": "x"}, "from")]
)
def test_senseless_range_is_refused(service: Service, run_id: int, query: dict[str, str], field: str) -> None:
    answer = service.get(f"/runs/{run_id}/metrics", params=query)
    assert answer.status_code == 422
    assert field in answer.json()["errors"][0]["field"]
