"""Starts the ranks of a stage through torchrun's own run() and records how each of them ended.

`python -m trainer.launch --attempt-dir D --nproc N -- <arguments of trainer.entry>`

Exit code: 0 if every rank exited with 0, 65 if every rank saved and exited on request, 128 + n if the launcher
itself was stopped by signal n, 70 if the ranks could not be started, 1 otherwise.
"""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from trainer.common.process import PARENT_VARIABLE, die_with_parent
from trainer.contract.exits import EXIT_PREEMPTED
from trainer.contract.paths import AttemptPaths
from trainer.ranks import RankProcess, Waiting, install

EXIT_LAUNCH_ERROR = 70
LOOPBACK = "127.0.0.1:0"
"""Port 0: the launcher takes a free port, so that two runs never share one."""


def main() -> int:
    """Run the launcher and return its exit code."""
    options = _options()
    die_with_parent()
    attempt = AttemptPaths(Path(options.attempt_dir))
    RankProcess.paths = attempt if options.node is None else attempt.node(options.node)
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    install()
    problem, signal_number = endpoint_problem(options.endpoint), None
    if problem is None:
        problem, signal_number = _run(options)
    while RankProcess.waiting:
        RankProcess.waiting.pop().dismiss()
    ranks = RankProcess.record(launcher_error=problem, launcher_signal=signal_number)
    if problem is not None:
        sys.stderr.write(f"launch failed: {problem}\n")
    return _exit_code(ranks, problem, signal_number)


def endpoint_problem(endpoint: str) -> str | None:
    """Return why ranks cannot rendezvous at `host:port`, or None if no problem was found."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        return f"endpoint {endpoint!r} is not host:port"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return f"host name {host!r} cannot be resolved ({error}): use an address, for one machine {LOOPBACK}"
    if not host.startswith(("127.", "localhost", "::1")):
        return None  # another node may host the store there; only torchrun can check that
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return f"port {port} on {host} cannot be used ({error}): use port 0 to get a free one"
    return None


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m trainer.launch", description=__doc__)
    parser.add_argument("--attempt-dir", required=True, help="folder for logs, exit report and torchrun's own files")
    parser.add_argument("--nproc", type=int, required=True, help="ranks on this node")
    parser.add_argument("--nnodes", type=int, default=1, help="nodes; more than one needs --endpoint and --rdzv-id")
    parser.add_argument("--endpoint", default=LOOPBACK, help="rendezvous endpoint, host:port")
    parser.add_argument("--rdzv-id", default=uuid4().hex, help="rendezvous id, the same on every node")
    parser.add_argument("--node", type=int, help="number of this node; 0 hosts the rendezvous")
    parser.add_argument("--local-addr", default="", help="address by which the other nodes reach this one")
    parser.add_argument("--module", default="trainer.entry", help=argparse.SUPPRESS)
    parser.add_argument("entry", nargs="+", help="arguments of trainer.entry, after --")
    return parser.parse_args()


def _run(options: Any) -> tuple[str | None, int | None]:
    """Run the ranks until they end. Returns (why they could not be started, signal that stopped the launcher)."""
    _fork_ranks(options.nproc)
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.run(run.parse_args(_torchrun_arguments(options)))  # type: ignore[no-untyped-call]
    except ChildFailedError:
        return None, None  # how each rank ended is read from its process
    except SignalException as error:
        return None, int(error.sigval)
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    return None, None


def _fork_ranks(count: int) -> None:
    """Import once what every rank imports, and fork the ranks while this process still has a single thread."""
    import torch.distributed.run  # used by the launcher
    import torch.nn.parallel  # noqa: F401

    RankProcess.waiting.extend(Waiting() for _ in range(count))


def _torchrun_arguments(options: Any) -> list[str]:
    address = "127.0.0.1" if options.nnodes == 1 else options.local_addr
    place = ["--local-addr", address] if address else []
    if options.nnodes > 1 and options.node is not None:
        place += ["--rdzv-conf", f"is_host={'true' if options.node == 0 else 'false'}"]
    return [
        f"--nnodes={options.nnodes}",
        f"--nproc-per-node={options.nproc}",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={options.endpoint}",
        f"--rdzv-id={options.rdzv_id}",
        *place,
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
