"""`ddp-audit trace` where something is wrong around the script: a hang, a directory, a service, an option."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import COMMAND, environment
from tests.support.trace_command import LANGUAGE, ODD, PYTHON, TORCHRUN, runs, trace
from tests.support.waiting import until
from trainer.contract.kinds import kinds


@pytest.mark.torchrun
def test_hanging_rank_is_named_and_nothing_is_ended(tmp_path: Path) -> None:
    """Rank 1 sleeps, rank 0 waits in a collective: the run continues and names the rank that it waits for."""
    process = subprocess.Popen(
        [str(COMMAND), "trace", "--", *TORCHRUN, ODD, "sleeps"],
        env=environment(tmp_path / "data", {"OMP_NUM_THREADS": "1", "DDP_AUDIT_HANG_SECONDS": "3"}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # a test runner may ignore it
    )
    until(lambda: any(run["state"] == "running" for run in runs(tmp_path)), "the run starts")
    # On a slow machine the start of DDP is silent for this long too, and another rank may be named before.
    until(lambda: shown(tmp_path)["diagnosis"].startswith("Rank 1 holds up the run"), "rank 1 is named")
    assert shown(tmp_path)["state"] == "running"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert shown(tmp_path)["state"] == "cancelled"


def shown(tmp_path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [str(COMMAND), "show", "1", "--json"],
        env=environment(tmp_path / "data", {}),
        capture_output=True,
        text=True,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.torchrun
def test_folder_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    """The script of a prepared folder that was lost on the way."""
    site = str(Path(kinds()["trace"].params.__module__.replace(".", "/")).parent / "site")
    bare = {name: value for name, value in os.environ.items() if not name.startswith("DDP_AUDIT_")}
    given = {"PYTHONPATH": str(Path.cwd() / site), "DDP_AUDIT_TRACE": "/dev/null/records", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*TORCHRUN, ODD, "well"], env={**bare, **given}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this rank is not traced: NotADirectoryError") == 2


def test_data_directory_that_cannot_be_written_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    done = subprocess.run(
        [str(COMMAND), "trace", "--", "touch", str(tmp_path / "started")],
        env=environment(tmp_path / "data", {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert str(tmp_path / "data") in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.torchrun
def test_finished_run_is_sent_to_the_service_that_is_named(tmp_path: Path) -> None:
    """A service at another address, which only its operator may write to."""
    there = {"DDP_AUDIT_HOST": "127.0.0.2", "DDP_AUDIT_PORT": str(free_port()), "DDP_AUDIT_TOKEN": "t" * 32}
    service = subprocess.Popen(
        [str(COMMAND), "serve"],
        env=environment(tmp_path / "service", there),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: asked(tmp_path, there) == [], "the service answers")
        done = trace(tmp_path, "--name", "far", "--", *TORCHRUN, LANGUAGE, "right_mean", given=there)
        assert done.returncode == 0, done.stderr
        assert "where it is run 1" in done.stderr
        until(lambda: [run["state"] for run in asked(tmp_path, there) or []] == ["succeeded"], "it is judged there")
        assert [(run["name"], run["verdict"]) for run in asked(tmp_path, there) or []] == [("far", "pass")]
        assert [run["name"] for run in runs(tmp_path)] == ["far"]
    finally:
        service.terminate()
        service.wait(30)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.2", 0))
        return int(found.getsockname()[1])


def asked(tmp_path: Path, there: dict[str, str]) -> list[dict[str, Any]] | None:
    """Return the runs of a service, None while it does not answer."""
    done = subprocess.run(
        [str(COMMAND), "list", "--json"],
        env=environment(tmp_path / "elsewhere", there),
        capture_output=True,
        text=True,
        check=False,
    )
    items: list[dict[str, Any]] | None = json.loads(done.stdout)["items"] if done.returncode == 0 else None
    return items


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "after --"),
        (["--", "no-such-program"], "no-such-program"),
        (["--windows", "0", "--", PYTHON, "-V"], "windows"),
        (["--unit", "word", "--", PYTHON, "-V"], "unit"),
        (["--allow", "nonsense", "--", PYTHON, "-V"], "allow"),
        (["--expect", "syncs", "--", PYTHON, "-V"], "--expect"),
        (["--expect", "syncs=1", "--", PYTHON, "-V"], "expect"),
        (["--expect", "syncs_per_step=one", "--", PYTHON, "-V"], "expect"),
        (["--expect", "=", "--", PYTHON, "-V"], "--expect"),
        (["--expect", "x=", "--", PYTHON, "-V"], "expect"),
        (["--name", "x" * 300, "--", PYTHON, "-V"], "name: "),
        (["--prepare", "a", "--import", "b"], "--prepare"),
        (["--import", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_names_what_is_wrong_and_records_nothing(words: list[str], named: str, tmp_path: Path) -> None:
    done = trace(tmp_path, *words)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert runs(tmp_path) == []
