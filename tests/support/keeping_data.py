"""A silent worker, deliveries, orphans, data sets and trends, for tests of the pages that show them."""

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlmodel import Session

from app.clock import now
from app.db import write_session
from app.runs.derived import Delivery, DeliveryAttempt
from app.runs.models import WorkerRow
from app.settings import Settings
from tests.support.ended import end_run, make_result
from trainer.contract.result import Check

DEVICES = {"torch": "2.14.1", "gloo": True, "nccl": False, "cpu_count": 2, "memory_bytes": 8 << 30, "gpus": []}
LONG_AGO = 3600.0
"""Age in seconds at which files count as orphans."""


def add_worker(engine: Engine, *, silent_seconds: float = 0, **fields: Any) -> None:
    """Record a worker whose newest heartbeat has this age."""
    at = now() - timedelta(seconds=silent_seconds)
    columns: dict[str, Any] = {"id": f"w{silent_seconds}", "pid": 4711, "host": "gpu-box", "kinds": ["token-parity"]}
    columns |= {"pid_start": 1, "boot_id": "b", "started_at": at - timedelta(hours=1), "heartbeat_at": at, **fields}
    with write_session(engine) as session:
        session.add(WorkerRow(**{"devices": DEVICES, **columns}))


def add_delivery(session: Session, run_id: int, name: str, status: str, answers: Sequence[int | None]) -> None:
    """Record a delivery with one attempt per answer; None is a receiver that did not answer."""
    run = {"id": run_id, "name": name, "state": "succeeded", "verdict": "pass"}
    row = Delivery(run_id=run_id, run=run, status=status, attempts=len(answers), next_at=now())
    session.add(row)
    session.flush()
    for number, answer in enumerate(answers, start=1):
        error = "" if answer == 204 else f"the receiver answered {answer}; 200 to 299 means received"
        session.add(
            DeliveryAttempt(
                delivery_id=row.id or 0,
                number=number,
                at=now() - timedelta(minutes=10 - number),
                seconds=0.021 * number,
                status=answer,
                error=error if answer else "no answer: ConnectError",
            )
        )


def leave_behind(path: Path, size: int) -> Path:
    """Write a file whose folder was last changed long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    age(path)
    age(path.parent)
    return path


def age(path: Path) -> None:
    """Make a file or folder appear unchanged for an hour."""
    past = time.time() - LONG_AGO
    os.utime(path, (past, past))


def add_keeping(settings: Settings, engine: Engine, run_id: int, name: str) -> None:
    """Add one orphan of each sort, and deliveries of one run with every outcome."""
    add_worker(engine, silent_seconds=400)
    leave_behind(settings.runs_dir / "777" / "model.pt", 3_000_000)
    for name_, size in (("cifar10", 40_000), ("photos", 9_000)):
        folder = settings.datasets_dir / name_
        folder.mkdir(parents=True)
        (folder / "data.bin").write_bytes(b"x" * size)
    with write_session(engine) as session:
        add_delivery(session, run_id, name, "delivered", [204])
        add_delivery(session, run_id, name, "failed", [None, 500, 503])
        add_delivery(session, run_id, name, "skipped", [])


def add_trend(engine: Engine, runs_dir: Path, errors: Sequence[Any], *, limit: float = 1e-6) -> list[int]:
    """End a run of token-parity per measured error, with the check `gradient_parity` limited by `limit`."""
    return [
        end_run(engine, runs_dir, make_result(_parity(error, limit)), name=f"nightly {place}")
        for place, error in enumerate(errors)
    ]


def _parity(error: Any, limit: float) -> Check:
    passed = isinstance(error, float) and error <= limit
    return Check(name="gradient_parity", title="Gradients agree", passed=passed, measured=error, limit=limit)
