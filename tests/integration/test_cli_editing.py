"""Commands that change runs: labels, cancelling and deleting several runs, each outcome, and confirmation."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.db import create_database_engine
from app.schema import migrate
from app.settings import Settings
from tests.support.cli import asking, call
from tests.support.pages_data import add_run, write_log
from tests.support.service import running_service


class Terminal(io.StringIO):
    """Standard input of a person at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    made = Settings(data_dir=tmp_path_factory.mktemp("data"))
    migrate(made)
    return made


@pytest.fixture(scope="module")
def engine(settings: Settings) -> Iterator[Engine]:
    engine = create_database_engine(settings)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def port(settings: Settings) -> Iterator[str]:
    with running_service(settings) as service:
        yield service.url.rsplit(":", 1)[1]


@pytest.fixture(params=["directory", "service"])
def ask(request: pytest.FixtureRequest, settings: Settings, port: str, tmp_path: Path) -> Any:
    """Return a function that runs a command on the data directory or with the service."""
    return asking(settings, port if request.param == "service" else None, tmp_path / "none")


def labels(document: dict[str, Any]) -> tuple[str, list[str], str, bool]:
    return document["name"], document["tags"], document["notes"], document["pinned"]


def test_edit_changes_only_what_is_given(ask: Any, engine: Engine) -> None:
    run = str(add_run(engine, "running", moves=("starting",), name="old", tags=["a", "b"], notes="kept"))
    first = ask("edit", run, "--name", "new", "--add-tag", "c", "--remove-tag", "a", "--pin", "--json")
    assert labels(first.document) == ("new", ["b", "c"], "kept", True)
    second = ask("edit", run, "--tag", "x", "--tag", "y", "--notes", "one\ntwo", "--json")
    assert labels(second.document) == ("new", ["x", "y"], "one\ntwo", True)
    third = ask("edit", run, "--no-tags", "--unpin", "--name", "", "--notes", "", "--json")
    assert labels(third.document) == ("", [], "", False)
    assert third.document == ask("show", run, "--json").document
    shown = ask("edit", run, "--name", "seen")
    assert "seen" in shown.stdout
    ask("edit", run, "--tag", "nightly", "--notes", "a note", "--pin")
    assert ask("show", run).stdout.splitlines()[1:3] == ["pinned, tag nightly", "a note"]
    audit = ask("audit", "--run", run, "--action", "edit", "--json").document["items"]
    assert len(audit) == 5


def test_edit_takes_several(ask: Any, engine: Engine) -> None:
    first, second = (add_run(engine, "queued", name=name) for name in ("one", "two"))
    done = ask("edit", str(first), "999", str(second), "--add-tag", "both", "--json")
    assert done.returncode == 6
    assert [item["outcome"] for item in done.document["items"]] == ["edited", "unknown_run", "edited"]
    for run, name in ((first, "one"), (second, "two")):
        document = ask("show", str(run), "--json").document
        assert (document["tags"], document["name"]) == (["both"], name)


def test_notes_come_from_standard_input(ask: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(add_run(engine, "queued"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nsecond\n"))
    assert ask("edit", run, "--notes", "-", "--json").document["notes"] == "first\nsecond\n"


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("1",), 2, "nothing to change"),
        (("1", "--no-tags", "--tag", "a"), 2, "--no-tags"),
        (("1", "--tag", "a", "--add-tag", "b"), 2, "either tags"),
        (("1", "--name", "\x07"), 2, "name"),
        (("1", "--name", "x" * 201), 2, "200"),
        (("999", "--name", "x"), 6, "no run 999"),
        (("x", "--name", "x"), 2, "integer"),
    ],
    ids=str,
)
def test_edit_refuses_and_names_it(ask: Any, engine: Engine, arguments: tuple[str, ...], code: int, why: str) -> None:
    run = add_run(engine, "queued", name="as it was")
    done = ask("edit", *(str(run) if word == "1" else word for word in arguments), "--json")
    assert done.returncode == code
    assert why in done.document["detail"]
    assert ask("show", str(run), "--json").document["name"] == "as it was"


def ended(engine: Engine, settings: Settings, **fields: Any) -> int:
    run = add_run(engine, "failed", reason="rank_exit", **fields)
    write_log(settings, run, "train", 0, "text")
    return run


def test_delete_tells_what_became_of_each(ask: Any, engine: Engine, settings: Settings) -> None:
    gone, going = ended(engine, settings), add_run(engine, "running", moves=("starting",))
    other = ended(engine, settings)
    done = ask("delete", str(gone), str(going), "999", str(other), str(gone), "--yes", "--json")
    assert done.returncode == 2  # the code of the first refusal
    assert [(item["run_id"], item["outcome"]) for item in done.document["items"]] == [
        (gone, "deleted"),
        (going, "not_final"),
        (999, "unknown_run"),
        (other, "deleted"),
    ]
    assert not (settings.runs_dir / str(gone)).exists()
    assert ask("show", str(other)).returncode == 6
    assert ask("show", str(going)).returncode == 0
    assert ask("delete", str(gone), str(going), "--yes").returncode == 6


def test_delete_asks_first(ask: Any, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(engine, settings)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # not a terminal: no person has read the question
    refused = ask("delete", str(run), "--json")
    assert (refused.returncode, refused.document["code"]) == (2, "usage")
    assert "--yes" in refused.stderr
    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        assert ask("delete", str(run)).returncode == 2
    assert (settings.runs_dir / str(run)).exists()
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    done = ask("delete", str(run))
    assert (done.returncode, done.stdout) == (0, f"run {run}: deleted\n")
    assert f"delete run {run} with all their files?" in done.stderr
    assert not (settings.runs_dir / str(run)).exists()


def test_cancel_takes_several(ask: Any, engine: Engine) -> None:
    waiting, over = add_run(engine, "queued"), add_run(engine, "failed", reason="hang")
    alone = ask("cancel", str(add_run(engine, "queued")), "--json").document
    assert (alone["state"], alone["reason"]) == ("cancelled", "cancelled_by_user")
    done = ask("cancel", str(waiting), str(over), "--json")
    assert done.returncode == 2
    assert [item["outcome"] for item in done.document["items"]] == ["cancelled", "already_final"]
    assert ask("cancel", str(over), "--json").document["code"] == "already_final"


def test_unreachable_service_stops_the_rest(tmp_path: Path) -> None:
    done = call("delete", "1", "2", "--yes", "--json", data_dir=tmp_path, DDP_AUDIT_PORT="1")
    assert done.returncode == 7
    assert [item["outcome"] for item in done.document["items"]] == ["unreachable", "not tried"]


def test_viewer_changes_nothing(tmp_path: Path) -> None:
    settings = Settings.model_validate({"data_dir": tmp_path, "token": "t", "viewer_token": "v"})
    migrate(settings)
    made = create_database_engine(settings)
    run = str(add_run(made, "failed", reason="hang", name="kept"))
    made.dispose()
    with running_service(settings) as service:
        viewer = {"DDP_AUDIT_PORT": service.url.rsplit(":", 1)[1], "DDP_AUDIT_VIEWER_TOKEN": "v"}
        denied = call("edit", run, "--name", "x", "--json", data_dir=tmp_path, **viewer)
        assert (denied.returncode, denied.document["code"]) == (2, "read_only")
        assert call("delete", run, "--yes", data_dir=tmp_path, **viewer).returncode == 2
        assert call("show", run, "--json", data_dir=tmp_path, **viewer).document["name"] == "kept"


def test_detached_run_is_only_recorded(ask: Any) -> None:
    done = ask("run", "token-parity", "--detach", "--name", "later", "--json")
    assert (done.returncode, done.document["state"], done.document["name"]) == (0, "queued", "later")
    assert ask("run", "token-parity", "--detach", "-p", "updates=0").returncode == 2
    assert ask("cancel", str(done.document["id"])).returncode == 0


def test_same_key_records_once(ask: Any, request: pytest.FixtureRequest) -> None:
    same = ("run", "token-parity", "--detach", "--idempotency-key", f"key-{request.node.name}", "--json")
    first, second = ask(*same).document, ask(*same).document
    assert first["id"] == second["id"]
    other = ask(*same, "-p", "updates=3")
    assert (other.returncode, other.document["code"]) == (2, "idempotency_key_reused")
    ask("cancel", str(first["id"]))


def test_launch_goes_to_the_executor(ask: Any) -> None:
    done = ask("run", "token-parity", "--detach", "--launch", "nodes=1", "--json")
    assert done.document["launch"] == {"nodes": 1}
    assert "nodes" not in done.document["params"]
    refused = ask("run", "token-parity", "--detach", "--launch", "partition=x", "--json")
    assert refused.returncode == 2
    assert "partition" in refused.document["detail"]
    assert "--launch nodes=2" in ask("run", "token-parity", "--launch", "nodes").stderr
    ask("cancel", str(done.document["id"]))
