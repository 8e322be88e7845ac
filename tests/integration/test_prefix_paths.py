"""Behind a path prefix everything works, whether the proxy strips the prefix or not."""

from collections.abc import Iterator

import pytest

from app.settings import Settings
from tests.support.service import Service, running_service, shown

PREFIX = "/team"


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(Settings(data_dir=tmp_path_factory.mktemp("prefix"), root_path=PREFIX)) as made:
        yield made


@pytest.mark.parametrize("before", [PREFIX, ""], ids=["kept", "stripped"])
@pytest.mark.parametrize(
    "path", ["/", "/runs", "/static/css/base.css", "/static/js/page.js", "/api/v1/runs", "/docs", "/openapi.json"]
)
def test_prefix_may_be_stripped(prefixed: Service, before: str, path: str) -> None:
    answer = prefixed.http.get(f"{before}{path}")
    assert answer.status_code == 200, answer.text[:300]
    assert prefixed.http.get(f"{before}{path}x").status_code == 404 or path == "/"


@pytest.mark.parametrize("before", [PREFIX, ""], ids=["kept", "stripped"])
def test_links_carry_the_prefix(prefixed: Service, before: str) -> None:
    page = shown(prefixed.http, f"{before}/storage")
    assert f'action="{PREFIX}/storage#retention"' in page
    assert 'href="/storage"' not in page
    wrong = prefixed.http.get(f"{before}/static/css/none.css")
    assert wrong.status_code == 404
    assert prefixed.http.post(f"{before}/storage/orphans", headers={"Accept": "text/html"}).status_code == 409
