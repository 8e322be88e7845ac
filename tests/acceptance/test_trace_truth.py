"""`ddp-audit trace` around real launchers: what the terminal shows, what is recorded, how it ends."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import COMMAND, environment
from tests.support.trace_command import LANGUAGE, ODD, PYTHON, TORCHRUN, runs, trace


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
    assert "out" in done.stderr
    assert "err" in done.stderr


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
        "try:\n    print('terminal', sys.stdout.isatty())\n    print('ready', flush=True)\n    time.sleep(100)\n"
        "except KeyboardInterrupt:\n    print('saved', flush=True)\n    sys.exit(0)\n"
    )
    shown = b""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner may ignore it, and so would all below
        os.execve(COMMAND, [str(COMMAND), "trace", "--", PYTHON, str(script)], environment(tmp_path / "data", {}))
    interrupted = False
    for piece in _pieces(terminal):
        shown += piece
        if b"ready\r\n" in shown and not interrupted:  # a terminal may hand over half a line
            interrupted = bool(os.write(terminal, b"\x03"))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = shown.decode()
    assert "terminal True" in text  # a terminal here is a terminal there
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
