"""compose.yaml and Dockerfile match the documentation."""

from pathlib import Path
from typing import Any

import pytest
import yaml

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
        if name != "migrate":
            assert service["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_image_copies_every_package() -> None:
    copied = (ROOT / "Dockerfile").read_text()
    for folder in ("app", "worker", "trainer", "migrations", "templates", "scripts"):
        assert f"COPY {folder} {folder}\n" in copied
