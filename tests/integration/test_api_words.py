"""The API's description: every route is described, in groups that are named and ordered."""

from pathlib import Path

from app.settings import Settings
from tests.support.service import running_service

METHODS = {"get", "post", "patch", "put", "delete"}


def test_every_route_says_what_it_does(tmp_path: Path) -> None:
    with running_service(Settings(data_dir=tmp_path)) as service:
        described = service.http.get("/openapi.json").json()
    routes = [route for path in described["paths"].values() for method, route in path.items() if method in METHODS]
    assert len(routes) > 40
    for route in routes:
        assert route["description"].replace("\n", " ").replace("`", "").startswith(route["summary"])
        assert len(route["summary"].split()) >= 3
    named = [tag["name"] for tag in described["tags"]]
    assert named[0] == "runs"
    assert {tag for route in routes for tag in route["tags"]} == set(named)
