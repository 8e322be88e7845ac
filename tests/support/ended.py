"""Ended runs, created without a worker: rows by real state changes, files as a kind writes them."""

from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, update
from sqlmodel import col

from app.db import write_session
from app.runs import queue
from app.runs.models import Run
from app.runs.states import Reason, State
from trainer.contract.paths import RunPaths
from trainer.contract.result import Check, Environment, Panel, Result, verdict_of


def make_result(*checks: Check, kind: str = "token-parity", panels: list[Panel] | None = None) -> Result:
    judged = list(checks) or [
        Check(name="gradient_parity", title="Gradients agree", passed=True, measured=3e-8, limit=1e-6)
    ]
    return Result(
        kind=kind,
        verdict=verdict_of(judged),
        environment=Environment(
            device="cpu",
            backend="gloo",
            world_size=2,
            threads=1,
            precision="fp32",
            versions={"torch": "2.14.1"},
            cpu="two cores",
            gpus=[],
            data_source="generated",
        ),
        params={"seed": 47},
        summary={"components": 282628},
        limits=["says nothing about other models"],
        checks=judged,
        panels=panels or [],
    )


def end_run(
    engine: Engine,
    runs_dir: Path,
    result: Result | None = None,
    *,
    state: State = State.SUCCEEDED,
    reason: Reason = Reason.COMPLETED,
    finished_at: datetime | None = None,
    payload: bytes = b"",
    **fields: Any,
) -> int:
    """Record a run, give it a folder with a result and `payload` as an artifact, and move it to its end."""
    kind = fields.pop("kind", "token-parity")
    with write_session(engine) as session:
        run = queue.insert_run(session, kind=kind, params={"seed": 47, "world_size": 2}, preset="quick", **fields)
        run_id = queue.number_of(run)
    paths = RunPaths(runs_dir / str(run_id))
    paths.artifacts.mkdir(parents=True)
    (paths.artifacts / "payload.bin").write_bytes(payload)
    if state is State.SUCCEEDED:
        result = result or make_result(kind=kind)
        result.save(paths.result)
    with write_session(engine) as session:
        queue.move(session, run_id, State.QUEUED, State.STARTING, actor="w")
        if state is not State.FAILED:
            queue.move(session, run_id, State.STARTING, State.RUNNING, actor="w")
        before = State.RUNNING if state is not State.FAILED else State.STARTING
        verdict = {"verdict": result.verdict} if result is not None else {}
        queue.move(session, run_id, before, state, reason=reason, actor="w", **verdict)
        if finished_at is not None:
            session.execute(update(Run).where(col(Run.id) == run_id).values(finished_at=finished_at))
    return run_id
