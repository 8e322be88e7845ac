"""Starts the ranks of a stage through torchrun's own run() and writes down how every one of them ended.

`python -m trainer.launch --attempt-dir D --nproc N -- <arguments of trainer.entry>`

Exit code: 0 when every rank ended with 0, 65 when every rank saved and ended on request, 128 + n when the launcher
itself was stopped by signal n, 70 when the ranks could not be started, 1 otherwise.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from trainer.common.process import PARENT_VARIABLE, die_with_parent
from trainer.contract.exits import EXIT_PREEMPTED
from trainer.contract.files import write_json_atomically
from trainer.contract.paths import AttemptPaths

EXIT_LAUNCH_ERROR = 70
LOOPBACK = "127.0.0.1:0"
"""Port 0: the launcher takes a free one, so that two runs never meet."""


class RankProcess(subprocess.Popen[bytes]):
    """torchrun's rank processes, remembered, each with its output in files of its own.

    torchrun reports failed ranks only; those that ended well, or were stopped because another failed, are known here.
    """

    paths: ClassVar[AttemptPaths]
    started: ClassVar[dict[int, "RankProcess"]] = {}
    """By local rank."""
    ended_at: float | None = None
    """Unix seconds at which the end was first seen, about a tenth of a second after the fact."""

    def __init__(self, *args: Any, **options: Any) -> None:
        env = options.get("env") or {}
        if "TORCHELASTIC_RUN_ID" not in env or "LOCAL_RANK" not in env:
            super().__init__(*args, **options)
            return
        self.rank, self.local_rank = int(env["RANK"]), int(env["LOCAL_RANK"])
        streams = {name: self.paths.log(self.rank, name) for name in ("stdout", "stderr")}
        streams["stdout"].parent.mkdir(parents=True, exist_ok=True)
        with streams["stdout"].open("ab") as out, streams["stderr"].open("ab") as err:
            super().__init__(*args, **{**options, "stdout": out, "stderr": err})
        self.started[self.local_rank] = self

    def poll(self) -> int | None:
        """Look for the end as the base class does, and note when it was first seen."""
        return self._noted(super().poll())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end as the base class does, and note when it was seen."""
        code = super().wait(timeout)
        self._noted(code)
        return code

    def _noted(self, code: int | None) -> int | None:
        if code is not None and self.ended_at is None:
            self.ended_at = time.time()
        return code

    def report(self) -> dict[str, Any]:
        """Return how this rank ended; `exit_code` and `signal` are both null if it still runs."""
        code = self.poll()
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "pid": self.pid,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "ended_at": self.ended_at,
            "error": self._last_words() if code else None,
        }

    def _last_words(self) -> str | None:
        try:
            return str(json.loads(self.paths.error(self.rank).read_text())["last_line"])
        except (OSError, ValueError, KeyError):
            return last_line(self.paths.log(self.rank, "stderr"))


def last_line(path: Path, *, window: int = 8192) -> str | None:
    """Return the last line of a text file that is not blank, or None; only the last `window` bytes are read."""
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, path.stat().st_size - window))
            lines = handle.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip() for line in reversed(lines) if line.strip()), None)


def main() -> int:
    """Run the launcher and return its exit code."""
    options = _options()
    die_with_parent()
    RankProcess.paths = AttemptPaths(Path(options.attempt_dir))
    _prepare_environment()
    problem, signal_number = endpoint_problem(options.endpoint), None
    if problem is None:
        problem, signal_number = _run(options)
    ranks = [RankProcess.started[local_rank].report() for local_rank in sorted(RankProcess.started)]
    write_json_atomically(
        RankProcess.paths.ranks_exit,
        {"ranks": ranks, "launcher_error": problem, "launcher_signal": signal_number},
    )
    if problem is not None:
        sys.stderr.write(f"launch failed: {problem}\n")
    return _exit_code(ranks, problem, signal_number)


def endpoint_problem(endpoint: str) -> str | None:
    """Return why ranks cannot meet at `host:port`, or None when nothing speaks against it."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        return f"endpoint {endpoint!r} is not host:port"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return f"host name {host!r} cannot be resolved ({error}): use an address, on one machine {LOOPBACK}"
    if not host.startswith(("127.", "localhost", "::1")):
        return None  # another node may hold the store there; only torchrun can tell
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return f"port {port} on {host} cannot be used ({error}): port 0 takes a free one"
    return None


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m trainer.launch", description=__doc__)
    parser.add_argument("--attempt-dir", required=True, help="folder for logs, exit report and torchrun's own files")
    parser.add_argument("--nproc", type=int, required=True, help="ranks on this node")
    parser.add_argument("--nnodes", type=int, default=1, help="nodes; more than one needs --endpoint and --rdzv-id")
    parser.add_argument("--endpoint", default=LOOPBACK, help="where the ranks meet, host:port")
    parser.add_argument("--rdzv-id", default=uuid4().hex, help="name of the meeting, the same on every node")
    parser.add_argument("--module", default="trainer.entry", help=argparse.SUPPRESS)
    parser.add_argument("entry", nargs="+", help="arguments of trainer.entry, after --")
    return parser.parse_args()


def _prepare_environment() -> None:
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    subprocess.Popen = RankProcess  # type: ignore[misc, assignment]  # before torch binds the name


def _run(options: Any) -> tuple[str | None, int | None]:
    """Run the ranks to their end. Returns (why they could not be started, signal that stopped the launcher)."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.run(run.parse_args(_torchrun_arguments(options)))  # type: ignore[no-untyped-call]
    except ChildFailedError:
        return None, None  # every rank's end is read from its process
    except SignalException as error:
        return None, int(error.sigval)
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    return None, None


def _torchrun_arguments(options: Any) -> list[str]:
    one_node = ["--local-addr", "127.0.0.1"] if options.nnodes == 1 else []
    return [
        f"--nnodes={options.nnodes}",
        f"--nproc-per-node={options.nproc}",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={options.endpoint}",
        f"--rdzv-id={options.rdzv_id}",
        *one_node,
        f"--log-dir={RankProcess.paths.root / 'logs' / 'torchrun'}",
        "-m",
        options.module,
        *options.entry,
    ]


def _exit_code(ranks: Sequence[dict[str, Any]], problem: str | None, signal_number: int | None) -> int:
    codes = {rank["exit_code"] for rank in ranks}
    if problem is not None:
        return EXIT_LAUNCH_ERROR
    if codes == {EXIT_PREEMPTED}:
        return EXIT_PREEMPTED
    if signal_number is not None:
        return 128 + signal_number
    return 0 if codes == {0} else 1


if __name__ == "__main__":
    sys.exit(main())
