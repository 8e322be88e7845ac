"""An executor whose attempts run on another node: its own process ids and host name, reached over a socket, with delay.

`python -m tests.support.elsewhere SOCKET DATA_DIR` is the node. `node(...)` starts it in separate name spaces, where
this machine's /proc is not visible and its process ids are not valid here. `ElsewhereExecutor` is the worker's side: a
thread queries the node several times a second, and while there is no answer the attempts are out of reach.
"""

import contextlib
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.settings import Settings
from trainer.contract.paths import AttemptPaths
from trainer.contract.placement import Offer
from worker.executors.base import Fate, Phase, RankProcess, RankUse, Reference, Status
from worker.executors.local.executor import LocalExecutor
from worker.executors.local.handle import LocalHandle
from worker.plan import AttemptPlan

NAME = "elsewhere"
LATE_SECONDS = 0.2
"""Seconds between two answers, and for each answer."""


class Node(socketserver.ThreadingUnixStreamServer):
    """The node's side: attempts by marker, on the local executor of its own process tree."""

    daemon_threads = True

    def __init__(self, path: str, data_dir: str) -> None:
        super().__init__(path, Call)
        self.executor = LocalExecutor(Settings(data_dir=Path(data_dir), warm_start=False))
        self.handles: dict[str, LocalHandle] = {}
        self.lock = threading.Lock()

    def answer(self, verb: str, plan: AttemptPlan, devices: Mapping[int, str], ranks: list[int]) -> Any:
        """Execute a request for one attempt."""
        with self.lock:
            handle = self.handles.get(plan.marker)
            if verb == "start":
                handle = self.handles[plan.marker] = self.executor.start(plan)
            elif handle is None:
                handle = self.handles[plan.marker] = self.executor.attach(plan, None)
            if verb in {"stop", "destroy", "kill_ranks", "ask_for_stacks"}:
                return getattr(handle, verb)()
            if verb == "take_stacks":
                return handle.take_stacks(ranks)
            return {
                "status": asdict(handle.status()),
                "ranks": {rank: asdict(process) for rank, process in handle.ranks().items()},
                "usage": {rank: asdict(use) for rank, use in handle.usage(devices).items()},
            }


class Call(socketserver.StreamRequestHandler):
    """One request, one delayed answer."""

    def handle(self) -> None:
        """Answer."""
        request = json.loads(self.rfile.readline())
        time.sleep(LATE_SECONDS)
        plan = request["plan"]
        paths, cwd = AttemptPaths(Path(plan.pop("root"))), Path(plan.pop("cwd"))
        made = AttemptPlan(**{**plan, "command": tuple(plan["command"]), "paths": paths, "cwd": cwd})
        devices = {int(rank): device for rank, device in request["devices"].items()}
        assert isinstance(self.server, Node)
        answer = self.server.answer(request["verb"], made, devices, request["ranks"])
        self.wfile.write(json.dumps(answer).encode() + b"\n")


@contextlib.contextmanager
def node(path: Path, data_dir: Path, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the node in separate name spaces and yield its process."""
    inside = f"hostname {NAME} && exec {sys.executable} -m tests.support.elsewhere {path} '{data_dir}'"
    argv = [
        "unshare",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--uts",
        "sh",
        "-c",
        inside,
    ]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(argv, cwd=root, env=dict(environment), stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Machine:
    """The devices of the node: only its processors."""

    @property
    def document(self) -> dict[str, Any]:
        """The published devices."""
        return {"host": NAME, "gpus": []}

    def poll(self) -> bool:
        """Nothing ever changes."""
        return False

    def offer(self) -> Offer:
        """No GPUs."""
        return Offer()

    def busy(self) -> dict[int, str]:
        """No GPUs."""
        return {}


class ElsewhereHandle:
    """The local state of one attempt: the newest answer, and pending requests."""

    def __init__(self, executor: "ElsewhereExecutor", plan: AttemptPlan) -> None:
        self.plan, self._executor = plan, executor
        self.devices: Mapping[int, str] = {}
        self.wanted: list[tuple[str, list[int]]] = []
        """Requests that have not reached the node yet."""
        self.known = Status(phase=Phase.LOOKING)
        self.seen: dict[int, RankProcess] = {}
        self.used: dict[int, RankUse] = {}

    def status(self) -> Status:
        """Return the newest answer, or that the node does not answer."""
        if self.known.phase is Phase.ENDED or self._executor.reachable:
            return self.known
        return Status(phase=Phase.UNREACHABLE, why=f"{NAME} does not answer", since=self.known.since)

    def reference(self) -> Reference:
        """Return the node's name; it knows the attempt by its marker."""
        return {"node": NAME, "marker": self.plan.marker}

    def descriptor(self) -> int | None:
        """Return None: there is nothing to wait on."""
        return None

    def ranks(self) -> Mapping[int, RankProcess]:
        """Return the last state from the node."""
        return self.seen

    def usage(self, devices: Mapping[int, str]) -> Mapping[int, RankUse]:
        """Return the last measurement from the node."""
        self.devices = devices
        return self.used

    def ask_for_stacks(self) -> None:
        """Request stacks on the node."""
        self.wanted.append(("ask_for_stacks", []))

    def take_stacks(self, ranks: Collection[int]) -> None:
        """Take stacks on the node."""
        self.wanted.append(("take_stacks", list(ranks)))

    def stop(self) -> None:
        """Stop the attempt on the node, once it can be reached."""
        self.wanted.append(("stop", []))

    def kill_ranks(self) -> int:
        """Kill the ranks on the node; returns their number in the last answer."""
        self.wanted.append(("kill_ranks", []))
        return sum(process.alive for process in self.seen.values())

    def destroy(self) -> None:
        """Kill everything on the node."""
        self.wanted.append(("destroy", []))

    def close(self) -> None:
        """Release the attempt."""
        self._executor.forget(self)

    def take(self, answer: Mapping[str, Any]) -> None:
        """Process an answer of the node."""
        status = answer["status"]
        self.known = Status(**{**status, "phase": Phase(status["phase"]), "fate": Fate(status["fate"])})
        self.seen = {int(rank): RankProcess(**process) for rank, process in answer["ranks"].items()}
        self.used = {int(rank): RankUse(**use) for rank, use in answer["usage"].items()}


class ElsewhereExecutor:
    """The worker's side; its thread is the only one that talks to the node."""

    name = NAME

    def __init__(self, path: Path) -> None:
        self.path, self.reachable = path, True
        self.devices = Machine()
        self._handles: list[ElsewhereHandle] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask_for_ever, daemon=True)
        self._thread.start()

    def start(self, plan: AttemptPlan) -> ElsewhereHandle:
        """Record that the attempt must be started; the node is informed in the next round."""
        handle = self._handle(plan)
        handle.known = Status(phase=Phase.WAITING, why=f"{NAME} has not answered yet")
        handle.wanted.append(("start", []))
        return handle

    def attach(self, plan: AttemptPlan, reference: Reference | None) -> ElsewhereHandle:
        """Return the handle of an attempt that the node may have."""
        assert reference is None or reference["node"] == NAME
        return self._handle(plan)

    def forget(self, handle: ElsewhereHandle) -> None:
        """Stop querying an attempt."""
        if handle in self._handles:
            self._handles.remove(handle)

    def close(self) -> None:
        """End the thread; the node's attempts continue."""
        self._ended.set()
        self._thread.join(10)

    def _handle(self, plan: AttemptPlan) -> ElsewhereHandle:
        handle = ElsewhereHandle(self, plan)
        self._handles.append(handle)
        return handle

    def _ask_for_ever(self) -> None:
        while not self._ended.wait(LATE_SECONDS):
            for handle in list(self._handles):
                try:
                    while handle.wanted:
                        self._ask(handle, *handle.wanted[0])
                        handle.wanted.pop(0)
                    handle.take(self._ask(handle, "look", []))
                    self.reachable = True
                except OSError:
                    self.reachable = False

    def _ask(self, handle: ElsewhereHandle, verb: str, ranks: list[int]) -> Any:
        plan = {name: getattr(handle.plan, name) for name in handle.plan.__slots__ if name not in {"paths", "cwd"}}
        plan |= {"root": str(handle.plan.paths.root), "cwd": str(handle.plan.cwd), "command": list(plan["command"])}
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(10)
            line.connect(str(self.path))
            request = {"verb": verb, "plan": plan, "devices": handle.devices, "ranks": ranks}
            line.sendall(json.dumps(request, default=dict).encode() + b"\n")
            with line.makefile("rb") as answer:
                return json.loads(answer.readline())


def unreachable(path: Path) -> Path:
    """Cut the connection to the node and return the path at which it can be restored."""
    aside = path.with_suffix(".away")
    path.rename(aside)
    return aside


if __name__ == "__main__":
    os.umask(0o077)
    with Node(sys.argv[1], sys.argv[2]) as server:
        server.serve_forever()
