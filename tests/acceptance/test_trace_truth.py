"""`ddp-audit trace` around real launchers: what the terminal shows, what is recorded, how it ends."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import COMMAND, environment
from tests.support.traced import SCRIPTS
from tests.support.waiting import until
from trainer.contract.kinds import kinds

PYTHON = sys.executable
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ODD = str(SCRIPTS / "odd.py")
LANGUAGE = str(SCRIPTS / "language.py")


def trace(
    tmp_path: Path, *words: str, given: dict[str, str] | None = None, typed: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the command in a separate folder."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return subprocess.run(
        [str(COMMAND), "trace", *words],
        env=environment(tmp_path / "data", {"OMP_NUM_THREADS": "1", **(given or {})}),
        cwd=work,
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def runs(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the runs that were recorded, oldest first."""
    done = subprocess.run(
        [str(COMMAND), "list", "--json", "--sort", "oldest"],
        env=environment(tmp_path / "data", {}),
        capture_output=True,
        text=True,
        check=True,
    )
    items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return items


@pytest.mark.torchrun
def test_script_is_judged_and_recorded(tmp_path: Path) -> None:
    done = trace(tmp_path, "--json", "--name", "nightly", "--tag", "ci", "--", *TORCHRUN, LANGUAGE, "rank_mean")
    document = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert (document["state"], document["verdict"], document["name"]) == ("succeeded", "fail", "nightly")
    summary = document["result"]["summary"]
    assert [item["name"] for item in summary["findings"]] == ["rank_mean"]
    assert (summary["exit_code"], summary["engine"], summary["world_size"]) == (0, "ddp", 2)
    assert [stage["state"] for stage in document["stages"]] == ["succeeded", "succeeded"]
    folder = tmp_path / "data" / "runs" / str(document["id"]) / "trace" / "attempt_1"
    ended = json.loads((folder / "exit.json").read_text())
    assert [(rank["rank"], rank["exit_code"]) for rank in ended["ranks"]] == [(0, 0), (1, 0)]
    assert document["reproduce"].startswith("ddp-audit trace -- ")


def test_program_runs_as_it_would_without(tmp_path: Path) -> None:
    """Folder, input, outputs and the user's own PYTHONPATH."""
    done = trace(tmp_path, "--", PYTHON, ODD, "echo", given={"PYTHONPATH": "/of/mine"}, typed="hello\n")
    shown = done.stdout.splitlines()
    path, folder, line = shown[1].split(" ")
    assert (shown[0], line, folder) == ("out", "hello", str(tmp_path / "work"))
    assert path.endswith(":/of/mine")
    assert "err" in done.stderr.splitlines()
    assert not list((tmp_path / "work").iterdir())
    assert done.returncode == 1  # nothing that could be judged
    kept = subprocess.run(
        [str(COMMAND), "logs", "1"], env=environment(tmp_path / "data", {}), capture_output=True, text=True, check=True
    )
    assert [line.rpartition("] ")[2] for line in kept.stdout.splitlines()][:1] == ["out"]
    assert "err" in kept.stdout
    assert runs(tmp_path)[0]["verdict"] == "inconclusive"


def test_script_of_its_own_before_ours_is_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("import os\nos.environ['MINE'] = 'ran'\n")
    program = "import os, sys; print(os.environ.get('MINE'), 'sitecustomize' in sys.modules)"
    done = trace(tmp_path, "--", PYTHON, "-c", program, given={"PYTHONPATH": str(tmp_path / "mine")})
    assert done.stdout.splitlines()[0] == "ran True"


def test_json_leaves_standard_output_to_the_document(tmp_path: Path) -> None:
    done = trace(tmp_path, "--json", "--", PYTHON, ODD, "echo", typed="\n")
    assert json.loads(done.stdout)["verdict"] == "inconclusive"
    assert {"out", "err"} <= set(done.stderr.splitlines())


def test_exit_code_of_the_script_is_kept(tmp_path: Path) -> None:
    done = trace(tmp_path, "--json", "--", PYTHON, ODD, "code", "5")
    document = json.loads(done.stdout)
    assert (done.returncode, document["state"], document["reason"]) == (3, "failed", "rank_exit")
    assert document["failure"]["exit_code"] == 5
    assert document["stages"][0]["exit_code"] == 5


@pytest.mark.torchrun
def test_exception_of_a_rank_is_named(tmp_path: Path) -> None:
    done = trace(tmp_path, "--json", "--", *TORCHRUN, ODD, "exception")
    document = json.loads(done.stdout)
    assert (done.returncode, document["reason"], document["failure"]["rank"]) == (3, "rank_exit", 1)
    assert "the loss is negative" in document["failure"]["last_line"]


@pytest.mark.torchrun
def test_signal_of_a_rank_is_named(tmp_path: Path) -> None:
    document = json.loads(trace(tmp_path, "--json", "--", *TORCHRUN, ODD, "signal").stdout)
    assert (document["reason"], document["failure"]["rank"]) == ("rank_signal", 1)
    assert document["failure"]["signal"] == signal.SIGKILL


@pytest.mark.torchrun
def test_rank_that_leaves_without_a_word_gives_no_pass(tmp_path: Path) -> None:
    document = json.loads(trace(tmp_path, "--json", "--", *TORCHRUN, ODD, "os_exit").stdout)
    assert document["verdict"] == "inconclusive"
    unjudged = [check["name"] for check in document["result"]["checks"] if check["passed"] is None]
    assert unjudged == ["rank_symmetry"]


@pytest.mark.torchrun
@pytest.mark.parametrize(("case", "words"), [("no_model", "model"), ("isolated", "-I"), ("torch_only", "group")])
def test_program_that_cannot_be_seen_is_inconclusive_with_the_reason(case: str, words: str, tmp_path: Path) -> None:
    launch = TORCHRUN if case == "no_model" else (PYTHON,)
    document = json.loads(trace(tmp_path, "--json", "--", *launch, ODD, case).stdout)
    assert document["verdict"] == "inconclusive"
    told = " ".join(check["detail"] for check in document["result"]["checks"] if check["passed"] is None)
    assert words in told


@pytest.mark.torchrun
def test_one_rank_is_traced_too(tmp_path: Path) -> None:
    document = json.loads(trace(tmp_path, "--json", "--", PYTHON, ODD, "alone").stdout)
    assert (document["verdict"], document["result"]["summary"]["world_size"]) == ("pass", 1)


@pytest.mark.torchrun
def test_two_models_with_an_optimizer_each_pass(tmp_path: Path) -> None:
    document = json.loads(trace(tmp_path, "--json", "--", *TORCHRUN, ODD, "two_models").stdout)
    severities = {item["severity"] for item in document["result"]["summary"]["findings"]}
    assert (document["verdict"], severities) == ("pass", {"note"})


@pytest.mark.torchrun
def test_ctrl_c_reaches_the_script(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import sys, time\n"
        "print('began', sys.stdout.isatty(), flush=True)\n"
        "try:\n    time.sleep(100)\n"
        "except KeyboardInterrupt:\n    print('saved', flush=True)\n    sys.exit(0)\n"
    )
    shown = b""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(COMMAND, [str(COMMAND), "trace", "--", PYTHON, str(script)], environment(tmp_path / "data", {}))
    for piece in _pieces(terminal):
        if b"began" in piece and b"began" not in shown:
            os.write(terminal, b"\x03")
        shown += piece
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = shown.decode()
    assert "began True" in text  # a terminal here is a terminal there
    assert "saved" in text
    assert code == 130, text
    assert runs(tmp_path)[0]["state"] == "cancelled", text


def _pieces(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # nobody has the other end any more
            return
        if not piece:
            return
        yield piece


@pytest.mark.torchrun
def test_hanging_rank_is_named_and_nothing_is_ended(tmp_path: Path) -> None:
    """Rank 1 sleeps, rank 0 waits in a collective: the run continues and names the rank that it waits for."""
    process = subprocess.Popen(
        [str(COMMAND), "trace", "--", *TORCHRUN, ODD, "sleeps"],
        env=environment(tmp_path / "data", {"OMP_NUM_THREADS": "1", "DDP_AUDIT_HANG_SECONDS": "3"}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(lambda: any(run["state"] == "running" for run in runs(tmp_path)), "the run starts")
    until(lambda: shown(tmp_path)["diagnosis"] != "", "the hang is seen")
    document = shown(tmp_path)
    assert document["state"] == "running"
    assert document["diagnosis"].startswith("Rank 1 holds up the run")
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
