"""A fork of the template equals a new interpreter, and attempts start whatever happens to the template."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.environment import SECRETS
from app.host import processes
from app.host.processes import Identity
from app.settings import Settings
from tests.support.worker_lab import open_lab
from worker.executors.local import warm
from worker.executors.local.executor import LocalExecutor
from worker.executors.local.warm import Child, Starter, inherited
from worker.marker import MARKER

LOOK = """
import json, os, random, signal, sys, threading
from pathlib import Path
import numpy
print("to the log")
print("to the log, too", file=sys.stderr)
handled = {name: signal.getsignal(getattr(signal, name)) for name in ("SIGTERM", "SIGCHLD", "SIGHUP", "SIGUSR1")}
seen = {
    "argv": sys.argv[1:],
    "name": __name__,
    "main": sys.modules["__main__"].__spec__.name,
    "cwd": os.getcwd(),
    "session": os.getsid(0) == os.getpid(),
    "environment": dict(os.environ),
    "open": sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
    "signals": [name for name, handler in handled.items() if handler is not signal.SIG_DFL],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "threads": threading.active_count(),
    "torch": "torch" in sys.modules,
    "draws": [random.random(), float(numpy.random.rand())],
    "marked": Path("/proc/self/environ").read_bytes().split(b"\\0").count(b"DDP_AUDIT_MARKER=mine"),
    "command": Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode().split("\\0")[1:],
}
Path(sys.argv[1]).write_text(json.dumps(seen))
"""
ENDS = {
    "falls off the end": ("x = 1", 0),
    "exit code": ("import sys; sys.exit(3)", 3),
    "text": ("import sys; sys.exit('said')", 1),
    "exception": ("raise ValueError('said')", 1),
    "signal": ("import os; os.kill(os.getpid(), 9)", -9),
    "term": ("import os; os.kill(os.getpid(), 15)", -15),
    "hard exit": ("import os; os._exit(65)", 65),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    (folder / "looker.py").write_text(LOOK)
    for name, (code, _) in ENDS.items():
        (folder / f"ends_{name.replace(' ', '_')}.py").write_text(code)
    return folder


def starter(programs: Path, *, is_warm: bool) -> Starter:
    environment = inherited(os.environ)
    search = os.pathsep.join([str(programs), environment["PYTHONPATH"]])
    return Starter({**environment, **warm.THREADS, "PYTHONPATH": search}, warm=is_warm)


@pytest.fixture(scope="module", autouse=True)
def usual_signals() -> Iterator[None]:
    """Undo what `nohup` or a background job of a shell ignores: a new interpreter would inherit it."""
    usual: dict[signal.Signals, Any] = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    found = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in found.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def warmed(programs: Path) -> Iterator[Starter]:
    made = starter(programs, is_warm=True)
    until(lambda: not made.warming(), 120)
    yield made
    made.close()


@pytest.fixture(scope="module")
def cold(programs: Path) -> Starter:
    return starter(programs, is_warm=False)


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found
    return found


def ended(child: Child) -> int:
    until(lambda: child.poll() is not None)
    code = child.poll()
    assert code is not None
    return code


def look(this: Starter, folder: Path, name: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "looker", str(folder / name), "ü b"]
    child = this.start(argv, {MARKER: "mine", "X": "1"}, cwd=str(folder), out=str(folder / f"{name}.log"))
    assert ended(child) == 0, (folder / f"{name}.log").read_text()
    seen: dict[str, Any] = json.loads((folder / name).read_text())
    assert seen.pop("argv") == [str(folder / name), "ü b"]
    assert seen.pop("command") == ["-m", "looker", str(folder / name), "ü b"]
    assert sorted((folder / f"{name}.log").read_text().splitlines()) == ["to the log", "to the log, too"]
    return seen


def test_fork_finds_what_a_new_interpreter_finds(warmed: Starter, cold: Starter, tmp_path: Path) -> None:
    forked, again, anew = (look(this, tmp_path, name) for this, name in ((warmed, "a"), (warmed, "b"), (cold, "c")))
    assert (forked.pop("torch"), again.pop("torch"), anew.pop("torch")) == (True, True, False)
    draws = [seen.pop("draws") for seen in (forked, again, anew)]
    assert len({json.dumps(drawn) for drawn in draws}) == 3
    assert draws[0][0] != draws[1][0]
    assert draws[0][1] != draws[1][1]
    assert forked == again
    assert forked == anew
    assert (forked["marked"], forked["session"], forked["environment"]["X"]) == (1, True, "1")


@pytest.mark.parametrize("name", ENDS)
def test_ends_are_told_alike(warmed: Starter, cold: Starter, tmp_path: Path, name: str) -> None:
    argv = [sys.executable, "-m", f"ends_{name.replace(' ', '_')}"]
    codes = [
        ended(this.start(argv, {}, cwd=str(tmp_path), out=str(tmp_path / log)))
        for this, log in ((warmed, "forked"), (cold, "anew"))
    ]
    assert codes == [ENDS[name][1]] * 2
    last = [(tmp_path / log).read_text().splitlines()[-1:] for log in ("forked", "anew")]
    assert last[0] == last[1]


def test_marked_fork_is_found_and_nobody_else(warmed: Starter, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"]
    child = warmed.start(argv, {MARKER: "found:by:this:1"}, cwd=str(tmp_path), out=str(tmp_path / "log"))
    assert [process.pid for process in until(lambda: processes.carrying(MARKER, "found:by:this:1"))] == [child.pid]
    assert processes.carrying(MARKER, "found:by:this") == []
    child.kill()
    assert ended(child) == -9
    assert processes.carrying(MARKER, "found:by:this:1") == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_attempts_start_without_the_template(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(warm, "ANSWER_SECONDS", 1.0)
    this = starter(programs, is_warm=True)
    until(lambda: not this.warming(), 120)
    template = this.template_process()
    assert template is not None
    template.send(number)
    seen = look(this, tmp_path, "after")
    assert seen["torch"] is False
    until(lambda: not template.alive)
    assert not this.warming()  # no immediate retry
    this.close()


def test_template_that_cannot_start_is_given_up(programs: Path, tmp_path: Path) -> None:
    this = Starter({**inherited(os.environ), "PYTHONPATH": str(programs), "PYTHONNOUSERSITE": "1"}, warm=True)
    (programs / "trainer").mkdir()
    (programs / "trainer" / "__init__.py").write_text("raise ImportError('not today')")
    try:
        until(lambda: not this.warming(), 60)
        assert look(this, tmp_path, "anyway")["torch"] is False
    finally:
        (programs / "trainer" / "__init__.py").unlink()
        (programs / "trainer").rmdir()
        this.close()


def test_template_ends_with_its_worker(tmp_path: Path) -> None:
    with open_lab(tmp_path) as lab:
        worker = lab.worker()
        run_id = lab.submit(launcher="python", steps=400, step_seconds=0.05)
        lab.rank_at_step(run_id, 0, 1)
        templates = [child for child in processes.children(worker.pid) if b"local.template" in command_of(child.pid)]
        assert len(templates) == 1
        identity = Identity.of(templates[0].pid)
        worker.kill()
        worker.wait()
        until(lambda: identity is not None and not identity.alive)
        assert lab.processes(run_id)  # the attempt continues
        lab.cancel(run_id)
        lab.worker()
        assert lab.finished(run_id).state == "cancelled"
        assert lab.processes(run_id) == []


def command_of(pid: int) -> bytes:
    try:
        return (processes.PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def test_template_knows_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data_dir=tmp_path)
    for name in SECRETS:
        monkeypatch.setenv(name, "hidden-from-forks")
    executor = LocalExecutor(settings)
    executor.devices.poll()
    children = until(
        lambda: [child for child in processes.children(os.getpid()) if b"template" in command_of(child.pid)]
    )
    assert all("hidden-from-forks" not in str(processes.environment_of(child.pid)) for child in children)
    executor.close()


@pytest.mark.torchrun
@pytest.mark.parametrize("is_warm", ["1", "0"])
def test_ranks_are_the_same_either_way(tmp_path: Path, is_warm: str) -> None:
    with open_lab(tmp_path) as lab:
        lab.worker(DDP_AUDIT_WARM_START=is_warm)
        run_id = lab.submit(steps=100, step_seconds=0.05, meeting="gloo")
        lab.rank_at_step(run_id, 1, 1)
        agent = lab.agent(run_id)
        ranks = {
            environment["RANK"]: environment
            for process in lab.processes(run_id)
            if "TORCHELASTIC_RUN_ID" in (environment := processes.environment_of(process.pid))
        }
        assert sorted(ranks) == ["0", "1"]
        assert [ranks[rank]["LOCAL_RANK"] for rank in ("0", "1")] == ["0", "1"]
        parents = {found.parent for row in lab.ranks(run_id) if (found := processes.stat(row.pid or 0)) is not None}
        assert parents == {agent}
        assert lab.finished(run_id).verdict == "pass"


@pytest.mark.torchrun
@pytest.mark.parametrize("is_warm", ["1", "0"])
def test_run_leaves_nothing_in_the_temporary_folder(tmp_path: Path, is_warm: str) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with open_lab(tmp_path / "data") as lab:
        run_id = lab.submit("token-parity")
        assert lab.worker("--once", TMPDIR=str(temporary), DDP_AUDIT_WARM_START=is_warm).wait(120) == 0
        assert lab.run(run_id).verdict == "pass"
    assert [path.name for path in temporary.iterdir()] == []
