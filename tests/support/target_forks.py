"""Stages of gradient audits with ranks forked from one process, which has torch imported: many short runs, few starts.

`python -m tests.support.target_forks ROOT NAME…` runs the stages of every run folder `ROOT/NAME` up to the first that
fails, and leaves exit.json there, as the supervisor does.
"""

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

import torch.nn.parallel  # noqa: F401  # what every rank imports

from trainer import entry
from trainer.common.policy import import_compiler
from trainer.contract.config import RunConfig
from trainer.contract.files import write_json_atomically
from trainer.contract.kinds import StagePlan, kinds, resolve_params
from trainer.contract.paths import RunPaths

SECONDS = 60.0
GRACE_SECONDS = 5.0
RANKS = 2


def main() -> None:
    """Run every folder."""
    import_compiler()
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        paths = RunPaths(root / name)
        config = RunConfig.load(paths.config)
        kind = kinds()[config.kind]
        for stage in kind.stages(resolve_params(kind, None, config.params)):
            if not run_stage(paths, stage):
                break


def run_stage(paths: RunPaths, stage: StagePlan) -> bool:
    """Run one stage and return whether every rank ended with 0."""
    count = RANKS if stage.launcher == "torchrun" else 1
    attempt = paths.attempt(stage.name, 1)
    attempt.root.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pids = [_fork(paths, stage, rank, count, port) for rank in range(count)]
    codes, ended = _wait(pids)
    write_json_atomically(
        attempt.exit,
        {
            "main": {"exit_code": int(any(codes))},
            "ranks": [
                {
                    "rank": rank,
                    "exit_code": code if code >= 0 else None,
                    "signal": -code if code < 0 else None,
                    "died_at": ended[rank],
                }
                for rank, code in enumerate(codes)
            ],
        },
    )
    return not any(codes)


def _fork(paths: RunPaths, stage: StagePlan, rank: int, count: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    with contextlib.suppress(BaseException):
        log = os.open(paths.attempt(stage.name, 1).root / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if count > 1:
            values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            os.environ.update({name: str(value) for name, value in values.items()})
            os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        sys.argv = ["entry", "--run-dir", str(paths.root), "--stage", stage.name, "--attempt", "1"]
        sys.argv += ["--entry", stage.entry]
        code = entry.main()
    os._exit(code)


def _wait(pids: list[int]) -> tuple[list[int], list[float]]:
    codes: dict[int, int] = {}
    ended: dict[int, float] = {}
    deadline = time.monotonic() + SECONDS
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid], ended[pid] = os.waitstatus_to_exitcode(status), time.time()
                if codes[pid]:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            for pid in set(pids) - codes.keys():
                os.kill(pid, signal.SIGTERM)
            deadline += GRACE_SECONDS
        time.sleep(0.01)
    return [codes[pid] for pid in pids], [ended[pid] for pid in pids]


if __name__ == "__main__":
    main()
