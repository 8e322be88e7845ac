"""Export links of the pages: every link works, for the shown runs, also below a prefix."""

import csv
import io
import re
import sys
from collections.abc import Iterator
from html import unescape

import pytest

from app.settings import Settings
from tests.support.pages_data import fill
from tests.support.service import Service, running_service, shown

PREFIX = "/audits"
LINK = re.compile(r'<a href="([^"]*/export\?[^"]*)">([^<]*)</a>')


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("links"), root_path=PREFIX)) as made:
        fill(made.settings, made.engine)
        yield made


def links(service: Service, page: str) -> dict[str, str]:
    return {text: unescape(address) for address, text in LINK.findall(shown(service.http, f"{PREFIX}{page}"))}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [7, 6, 5, 4, 3, 2, 1]),
        ("?sort=oldest&state=succeeded&state=failed&verdict=fail", [2]),
        ("?tag=nightly&q=base", [1]),
        ("?kind=cifar&pinned=0", [3]),
        ("?col=notes&col=verdict&kind=token-parity&state=succeeded&sort=oldest", [1, 2]),
    ],
)
def test_list_offers_what_it_found(service: Service, query: str, expected: list[int]) -> None:
    found = links(service, f"/runs{query}")
    assert len(found) == 6
    for text, address in found.items():
        assert address.startswith(f"{PREFIX}/api/v1/runs/export?")
        assert service.http.get(address).status_code == 200, text
    rows = list(csv.DictReader(io.StringIO(service.http.get(found["Runs as CSV"]).text)))
    assert [int(row["id"]) for row in rows] == expected


def test_nothing_found_offers_nothing(service: Service) -> None:
    assert links(service, "/runs?q=nothing") == {}


def test_run_offers_its_tables(service: Service) -> None:
    passed = links(service, "/runs/1")
    assert list(passed) == [
        "Run as JSON",
        "Metrics as CSV",
        "Metrics as Parquet",
        "Checks as CSV",
        "Checks as Parquet",
        "Resources as CSV",
        "Resources as Parquet",
    ]
    assert [service.http.get(address).status_code for address in passed.values()] == [200] * 7
    assert "gradient_parity" in service.http.get(passed["Checks as CSV"]).text
    assert service.http.get(passed["Checks as Parquet"]).content.startswith(b"PAR1")
    assert "Checks as CSV" not in links(service, "/runs/4")  # it has no result


def test_parquet_is_offered_only_where_it_works(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for page in ("/runs", "/runs/1"):
        assert not [text for text in links(service, page) if "Parquet" in text]
