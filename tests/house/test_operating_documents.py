"""Settings, tests, metrics and commands named in the documents on operation and security exist."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from typer.main import get_command

from app.cli.main import app as command_line
from app.main import create_app
from app.schema import migrate
from app.settings import Settings
from trainer.contract.kinds import KindSpec

ROOT = Path(__file__).resolve().parents[2]


def settings_told(text: str) -> set[str]:
    return set(re.findall(r"^\| `DDP_AUDIT_(\w+)` \|", text, re.MULTILINE))


def missing_tests(text: str) -> list[str]:
    missing = []
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        file = ROOT / path
        if not file.is_file() or f"def {name}(" not in file.read_text():
            missing.append(f"{path}::{name}")
    return missing


def metrics_drawn(dashboard: str) -> set[str]:
    queries = [target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel["targets"]]
    return {name for query in queries for name in re.findall(r"ddp_audit_\w+", query)}


def metrics_given(tmp_path: Path) -> set[str]:
    settings = Settings(data_dir=tmp_path)
    migrate(settings)
    app = create_app(settings)
    app.state.monitor.requests.labels("GET", "/", 200).inc()
    app.state.monitor.seconds.labels("GET", "/").observe(0.1)
    text = generate_latest(app.state.monitor.registry).decode()
    app.state.engine.dispose()
    return set(re.findall(r"^(?:# TYPE )?(ddp_audit_\w+)", text, re.MULTILINE))


def commands_told(text: str) -> set[str]:
    return set(re.findall(r"(?:`|bin/|^)ddp-audit ([a-z][a-z-]+)", text, re.MULTILINE))


def test_operations_names_every_setting() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    fields = {name.upper() for name in Settings.model_fields}
    assert settings_told(text) == fields
    assert settings_told(text.replace("| `DDP_AUDIT_TOKEN` |", "| `DDP_AUDIT_TOKENS` |")) != fields


def test_security_names_real_tests() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    assert text.count("::test_") > 30
    assert missing_tests(text) == []
    assert missing_tests(text.replace("::test_planted_faults_are_found", "::test_planted_faults")) != []
    for row in text.split("| promise |")[1].split("\n## ")[0].splitlines()[2:]:
        assert not row or "::test_" in row, f"a promise without a test: {row}"


def test_dashboard_draws_what_is_given(tmp_path: Path) -> None:
    drawn = metrics_drawn((ROOT / "deploy" / "grafana" / "ddp-audit.json").read_text())
    assert len(drawn) > 6
    assert drawn <= metrics_given(tmp_path)


def fields_told(text: str) -> set[str]:
    section = text.split("\n## Adding a kind\n")[1].split("\n## ", maxsplit=1)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_architecture_names_every_field_of_a_kind() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    known = {field.name for field in fields(KindSpec)}
    assert fields_told(text) == known
    assert fields_told(text.replace("| `verifier` |", "| `verifiers` |")) != known


@pytest.mark.parametrize(
    "path",
    ["docs/operations.md", *(f"deploy/systemd/ddp-audit-{name}.service" for name in ("web", "worker", "backup"))],
)
def test_commands_told_exist(path: str) -> None:
    known = set(get_command(command_line).commands)  # type: ignore[attr-defined]
    told = commands_told((ROOT / path).read_text())
    assert told
    assert told <= known
    assert "no-command" not in known


def test_worker_unit_leaves_jobs_alone() -> None:
    unit = (ROOT / "deploy" / "systemd" / "ddp-audit-worker.service").read_text()
    assert "\nKillMode=process\n" in unit
