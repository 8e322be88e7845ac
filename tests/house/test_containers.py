"""compose.yaml and Dockerfile match the documentation."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.database.address import read_address
from app.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return document


def test_services_and_profiles(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"migrate", "web", "worker"} <= services.keys()
    assert services["migrate"]["command"] == ["migrate"]
    assert services["migrate"]["restart"] == "no"
    counts = {
        service["profiles"][0]: service["deploy"]["resources"]["reservations"]["devices"][0]["count"]
        for service in services.values()
        if "deploy" in service
    }
    assert counts == {"one": 1, "two": 2}


def test_web_stays_on_loopback(compose: dict[str, Any]) -> None:
    web = compose["services"]["web"]
    assert web["network_mode"] == "host"
    assert web["environment"]["DDP_AUDIT_HOST"] == "127.0.0.1"
    assert "ports" not in web


def test_everything_waits_for_migrate(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if name not in {"migrate", "postgres"}:
            assert service["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_image_copies_every_package() -> None:
    copied = (ROOT / "Dockerfile").read_text()
    for folder in ("app", "worker", "trainer", "migrations", "templates", "scripts"):
        assert f"COPY {folder} {folder}\n" in copied


def test_image_can_use_postgresql() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = re.search(r'pip install .*\.whl\)\[(.*)\]"', (ROOT / "Dockerfile").read_text())
    assert installed is not None
    assert "postgres" in installed[1].split(",")
    assert set(installed[1].split(",")) <= extras.keys()
    assert any(name.startswith("psycopg") for name in extras["postgres"])


def test_services_use_the_given_database(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        if name != "postgres":
            assert service["environment"]["DDP_AUDIT_DATABASE_URL"] == "${DDP_AUDIT_DATABASE_URL:-}"
            assert service["network_mode"] == "host"  # the same address reaches the server from everywhere
    assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy", "required": False}
    assert services["postgres"]["profiles"] == ["postgres"]
    assert services["postgres"]["command"] == ["-c", "listen_addresses=127.0.0.1"]


def test_documented_address_is_that_of_the_server(compose: dict[str, Any]) -> None:
    text = (ROOT / "compose.yaml").read_text()
    example = re.search(r"#   DDP_AUDIT_DATABASE_URL=(\S+)", text)
    assert example is not None
    url, server = read_address(example[1]), compose["services"]["postgres"]["environment"]
    assert (url.username, url.database) == (server["POSTGRES_USER"], server["POSTGRES_DB"])
    assert (url.host, url.port) == ("127.0.0.1", 5432)
    assert f"#   POSTGRES_PASSWORD={url.password}\n" in text


def test_empty_address_means_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_AUDIT_DATABASE_URL", "")  # as compose passes it on
    assert Settings(data_dir=tmp_path).database.get_backend_name() == "sqlite"
