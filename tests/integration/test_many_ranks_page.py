"""The page of a run with hundreds of ranks: bounded in size, and every rank, line and chart can still be reached."""

import re
from collections.abc import Iterator
from typing import Final

import pytest

from app.db import read_session, write_session
from app.runs.models import RankRow, RankUsage, Run
from app.runs.telemetry.cursor import MOST_OFFSETS, Cursor, owner
from app.runs.telemetry.resources import resources
from app.settings import Settings
from tests.support.pages_data import add_metric, add_run, add_stages, write_log
from tests.support.service import Service, messages, running_service
from tests.support.service import shown as page_of

RANKS: Final = 300
SMALL: Final = 8
SAMPLES: Final = 6
MOST_BYTES: Final = 300_000


def fill(service: Service, ranks: int, state: str) -> int:
    engine, settings = service.engine, service.settings
    run_id = add_run(engine, state, moves=("starting", "running"))
    add_stages(engine, run_id, {"train": "running"})
    with write_session(engine) as session:
        session.get_one(Run, run_id).params = {"world_size": ranks}  # as of a traced program
        for rank in range(ranks):
            row = session.get(RankRow, (run_id, "train", 1, rank)) or RankRow(
                run_id=run_id, stage="train", attempt=1, rank=rank
            )
            row.node, row.local_rank, row.phase, row.step = f"node{rank // 8:03}", rank % 8, "forward", 5
            session.add(row)
            add_metric(session, run_id, "train", rank, [float(rank), 1.0, 2.0])
            for place in range(SAMPLES):
                session.add(RankUsage(run_id=run_id, stage="train", attempt=1, rank=rank, at=1e9 + place,
                                      cpu_seconds=place * (1.0 + rank), rss_bytes=rank << 20))  # fmt: skip
    for rank in range(ranks):
        write_log(settings, run_id, "train", rank, f"printed by {rank}.\n")
    return run_id


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


@pytest.fixture(scope="module")
def large(service: Service) -> int:
    return fill(service, RANKS, "running")


@pytest.fixture(scope="module")
def small(service: Service) -> int:
    return fill(service, SMALL, "running")


def rows(page: str) -> list[int]:
    """Return the ranks that have a row."""
    return [int(number) for number in re.findall(r'<span class="narrow">Rank </span>(?:<a [^>]*>)?(\d+)', page)]


def test_page_is_bounded(service: Service, large: int, small: int) -> None:
    page = page_of(service.http, f"/runs/{large}")
    assert len(page.encode()) < MOST_BYTES
    assert f"{RANKS} ranks on 38 nodes" in page
    assert len(rows(page)) == 16
    assert f"lowest of {RANKS}" in page
    assert "data-charts" in page
    other = page_of(service.http, f"/runs/{small}")
    assert rows(other) == list(range(SMALL))
    assert "lowest of" not in other
    assert "train rank 7" in other
    assert "data-charts" not in other
    assert "data-later" not in other


def test_every_rank_can_be_reached(service: Service, large: int) -> None:
    found, address = list[int](), f"/runs/{large}/ranks"
    while address:
        page = page_of(service.http, address)
        assert len(page.encode()) < MOST_BYTES
        found += rows(page)
        following = re.search(r'href="(\?[^"]*)">Next ranks', page)
        address = f"/runs/{large}/ranks{following[1].replace('&amp;', '&')}" if following else ""
    assert found == list(range(RANKS))
    assert rows(page_of(service.http, f"/runs/{large}/ranks?node=node002")) == list(range(16, 24))
    assert rows(page_of(service.http, f"/runs/{large}/ranks?node=nowhere")) == []
    assert service.http.get("/runs/999/ranks").status_code == 404


def test_chosen_rank_is_in_charts_and_log(service: Service, large: int) -> None:
    page = page_of(service.http, f"/runs/{large}")
    assert "printed by 31." in page
    assert "printed by 32." not in page
    assert "Output of ranks 0 to 31" in page
    assert "train rank 150" not in page
    chosen = page_of(service.http, f"/runs/{large}?rank=150&resources=shown")
    assert "printed by 150." in chosen
    assert "train rank 150" in chosen
    assert ">rank 150<" in chosen
    assert "Output of ranks 0 to 31" not in chosen
    assert "train rank 150" in page_of(service.http, f"/runs/{large}/charts?rank=150")
    assert "train rank 150" not in page_of(service.http, f"/runs/{large}/charts")
    assert "rank 150" in page_of(service.http, f"/runs/{large}/resources?rank=150")
    assert service.http.get("/runs/999/charts").status_code == 404


def test_charts_of_resources_follow_the_page(service: Service, large: int) -> None:
    page = page_of(service.http, f"/runs/{large}")
    assert "data-later" in page
    assert "CPU per rank" not in page
    assert "CPU per rank" in page_of(service.http, f"/runs/{large}?resources=shown")
    assert "CPU per rank" in page_of(service.http, f"/runs/{large}/resources")


def test_samples_of_the_same_moments_are_left_out(service: Service, large: int) -> None:
    with read_session(service.engine) as session:
        run = session.get_one(Run, large)
        every = resources(session, run).series
        kept = resources(session, run, most=RANKS * SAMPLES // 3).series
        assert resources(session, run, most=RANKS * SAMPLES).series == every
    assert {len(item.seconds) for item in every} == {SAMPLES}
    assert {len(item.seconds) for item in kept} == {2}
    assert len(kept) == RANKS
    by_rank = {item.rank: item.cpu_percent for item in kept}
    assert by_rank[7] == [None, 800.0]  # the mean since the sample before, whichever that was


def test_live_stream_keeps_to_the_same_ranks(service: Service) -> None:
    large = fill(service, RANKS, "running")
    page = page_of(service.http, f"/runs/{large}")
    address = re.search(r'hx-sse:connect="([^"]*)"', page)
    assert address is not None
    assert len(address[1]) < 1000  # its cursor holds the offsets of the shown files only
    for rank in (3, 200):
        write_log(service.settings, large, "train", rank, f"later by {rank}.\n")
    with write_session(service.engine) as session:
        session.get_one(Run, large).state = "failed"
    with service.http.stream("GET", address[1].replace("&amp;", "&")) as stream:
        text = "".join(stream.iter_text())
    assert "later by 3." in text
    assert "later by 200." not in text
    assert "ranks on 38 nodes" in text
    with service.http.stream("GET", f"/api/v1/runs/{large}/stream?only=log") as stream:
        logged = {item.data["rank"] for item in messages(stream) if item.type == "log"}
    assert logged == set(range(RANKS))  # of the API nothing is left out


def test_cursor_of_two_thousand_ranks_is_accepted(service: Service, large: int) -> None:
    mine = owner("stream", large, True, [None, None, None], [None, None])
    cursor = Cursor(of=mine, position=0, attempt=1, offsets=tuple(range(9_000_000, 9_000_000 + MOST_OFFSETS)))
    headers = {"Last-Event-ID": cursor.encode()}
    assert len(headers["Last-Event-ID"]) > 40_000
    with service.http.stream("GET", f"/api/v1/runs/{large}/stream", headers=headers) as answer:
        assert answer.status_code == 200
    refused = service.http.get(f"/api/v1/runs/{large}/stream", headers={"Last-Event-ID": "x" * 50_001})
    assert refused.status_code == 422
