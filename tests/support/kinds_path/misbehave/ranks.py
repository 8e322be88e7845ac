"""A rank of the test kind: steps with events, meetings, checkpoints, and one act of misbehaviour."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.checkpoints import add_checkpoint
from trainer.common.context import StageContext
from trainer.common.process import announce
from trainer.contract.checkpoints import newest_valid
from trainer.contract.exits import EXIT_PREEMPTED
from trainer.contract.result import Check, Environment, Result, verdict_of

Meet = Callable[[int], None]
ASKED: list[bool] = []
"""Filled by the TERM handler of a rank that stops on TERM."""


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's exception."""


def train(context: StageContext) -> int | None:
    """Work through the steps, starting at the newest checkpoint."""
    act = context.params.acts.get(str(context.rank), "work")
    if act == "silent":
        time.sleep(3600)
    if act == "obey":
        signal.signal(signal.SIGTERM, lambda *_: ASKED.append(True))
    with group(context) as meet:
        code = steps(context, act, meet)
    if code is None and context.is_main:
        finish(context)
    return code


def steps(context: StageContext, act: str, meet: Meet) -> int | None:
    params, telemetry = context.params, context.telemetry
    found, _ = newest_valid(context.paths.checkpoints(context.stage))
    for step in range(found.step if found else 0, params.steps):
        telemetry.phase("train", step)
        if ASKED:
            return EXIT_PREEMPTED
        if step == params.at_step and act not in {"work", "obey"}:
            if act == "return":
                return 0
            misbehave(act, context)
        if not (step == params.at_step and act == "skip"):
            meet(step)
        time.sleep(params.step_seconds)
        telemetry.metrics(step + 1, {"loss": 1 / (step + 1), "rank": float(context.rank)})
        telemetry.progress(step + 1, params.steps, "steps")
        if params.save_every and (step + 1) % params.save_every == 0 and context.is_main:
            save(context, step + 1)
    return None


def misbehave(act: str, context: StageContext) -> None:
    """Perform `act`, `name` or `name:value`; if it returns, the rank continues."""
    name, _, value = act.partition(":")
    ACTS[name](context, value)


def leave(_context: StageContext, value: str) -> None:
    """End without an event, but with text on standard error."""
    sys.stderr.write("my last words\n")
    sys.stderr.flush()
    os._exit(int(value))


def fail(_context: StageContext, _value: str) -> None:
    """End as a programming error does."""
    raise ValueError("the weights are gone")


def run_out_of_memory(_context: StageContext, _value: str) -> None:
    """End as torch does when it runs out of memory."""
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")


def use_memory(_context: StageContext, value: str) -> None:
    """Use that many MiB, piece by piece."""
    kept = []
    for _ in range(int(value) // 16):
        kept.append(b"x" * (16 << 20))
        time.sleep(0.01)


def signal_self(_context: StageContext, value: str) -> None:
    """Send itself a signal."""
    os.kill(os.getpid(), int(value))
    time.sleep(3600)


def loop(_context: StageContext, _value: str) -> None:
    """Never return."""
    while True:
        time.sleep(0.01)


def write_to_full_disk(_context: StageContext, _value: str) -> None:
    """Write to a device that is always full."""
    with Path("/dev/full").open("w") as handle:
        handle.write("x")


def flood(_context: StageContext, _value: str) -> None:
    """Print a hundred megabytes."""
    for _ in range(100):
        sys.stdout.write(("y" * 1023 + "\n") * 1024)
    sys.stdout.flush()


def be_deaf(context: StageContext, _value: str) -> None:
    """Ignore TERM, with helpers in separate sessions, one of them stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    stopped = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    os.kill(stopped.pid, signal.SIGSTOP)
    while True:
        time.sleep(0.05)
        context.telemetry.progress(1, 2, "naps")


def garbage(context: StageContext, _value: str) -> None:
    """Write malformed lines among the events, and odd numbers in a valid one."""
    path = context.paths.attempt(context.stage, context.attempt).events(context.rank)
    with path.open("ab") as handle:
        handle.write(b'{"half": \n\xff\xfe\n[1]\n')
        handle.write(b'{"seq":1,"t":1,"type":"metrics","step":0,"values":{"a":"NaN","b":null}}\n')


def tear(context: StageContext, _value: str) -> None:
    """Die in the middle of a line."""
    path = context.paths.attempt(context.stage, context.attempt).events(context.rank)
    with path.open("ab") as handle:
        handle.write(b'{"seq":9,"t":1,"type":"mess')
    os._exit(3)


ACTS: dict[str, Callable[[StageContext, str], None]] = {
    "exit": leave,
    "raise": fail,
    "oom": run_out_of_memory,
    "memory": use_memory,
    "signal": signal_self,
    "loop": loop,
    "full": write_to_full_disk,
    "flood": flood,
    "deaf": be_deaf,
    "garbage": garbage,
    "tear": tear,
    "skip": lambda _context, _value: None,
}


@contextlib.contextmanager
def group(context: StageContext) -> Iterator[Meet]:
    if context.params.meeting == "gloo":
        from trainer.common.distributed import process_group

        with process_group(context) as found:
            yield lambda step: found.barrier(f"step {step}")
        return
    announce(context.telemetry, device="cpu", backend="gloo", world_size=context.world_size)
    if context.params.meeting == "none":
        yield lambda _step: None
    else:
        yield lambda step: meet_by_files(context, step)


def meet_by_files(context: StageContext, step: int) -> None:
    folder = context.paths.work / f"{context.stage}-{context.attempt}-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    with context.telemetry.collective(f"meeting {step}"):
        (folder / str(context.rank)).touch()
        while len(list(folder.iterdir())) < context.world_size:
            time.sleep(0.01)


def save(context: StageContext, step: int) -> None:
    root = context.paths.checkpoints(context.stage)
    saved = add_checkpoint(root, step, time.time(), kind="misbehave", world_size=context.world_size)
    context.telemetry.checkpoint(step, str(saved.relative_to(context.paths.root)))


def finish(context: StageContext) -> None:
    kind = context.params.result
    if kind == "missing":
        return
    if kind == "invalid":
        context.paths.result.write_text('{"schema_version": 1, "verdict": "pass"}')
        return
    check = Check(name="worked", title="Worked", passed=kind != "fail", measured=0.0, limit=1.0)
    Result(
        kind="token-parity" if kind == "other_kind" else "misbehave",
        verdict=verdict_of([check]),
        environment=environment(context),
        params=context.config.params,
        summary={},
        limits=["anything"],
        checks=[check],
        panels=[],
    ).save(context.paths.result)


def environment(context: StageContext) -> Any:
    return Environment(
        device="cpu",
        backend="gloo",
        world_size=context.world_size,
        threads=1,
        precision="fp32",
        versions={},
        cpu="",
        gpus=[],
        data_source="none",
    )
