"""Runs in every state, with results, events, metrics and logs, for tests of the pages."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
from PIL import Image
from sqlalchemy import Engine
from sqlmodel import Session

from app.clock import now
from app.db import write_session
from app.runs.models import AuditEntry, MetricChunk, RankRow, RankUsage, Run, RunEvent, RunHistory, RunTag, StageAttempt
from app.runs.telemetry.packing import pack
from app.schema import migrate
from app.settings import Settings
from tests.support.keeping_data import add_keeping
from tests.support.results import every_panel, make_result
from trainer.contract.kinds import kinds, resolve_params
from trainer.contract.paths import RunPaths
from trainer.contract.result import Result

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
MOVES = ("starting", "running")


def add_run(engine: Engine, state: str, *, tags: Sequence[str] = (), moves: Sequence[str] = (), **fields: Any) -> int:
    """Record a run with its history and return its number."""
    started = now() - timedelta(seconds=95)
    kind, given = fields.pop("kind", "token-parity"), fields.pop("params", {})
    params = resolve_params(kinds()[kind], "quick", given).model_dump(mode="json")
    columns: dict[str, Any] = {"kind": kind, "preset": "quick", "params": params}
    columns |= {"created_at": started - timedelta(seconds=3), "device": "cpu", "backend": "gloo", **fields}
    if state != "queued":
        columns.setdefault("started_at", started)
    if state in ("succeeded", "failed", "cancelled", "lost"):
        columns.setdefault("finished_at", started + timedelta(seconds=41.3))
    begun, ended = columns.get("started_at"), columns.get("finished_at")
    if begun is not None and ended is not None:
        columns.setdefault("took_seconds", (ended - begun).total_seconds())
    with write_session(engine) as session:
        run = Run(state=state, **columns)
        session.add(run)
        session.flush()
        assert run.id is not None
        session.add_all(RunTag(run_id=run.id, tag=tag) for tag in tags)
        path = ["queued", *moves, state] if state != "queued" else ["queued"]
        for seq, (origin, target) in enumerate(zip([None, *path[:-1]], path, strict=True), start=1):
            session.add(RunHistory(run_id=run.id, seq=seq, at=started, origin=origin, target=target, actor="test"))
        return run.id


def add_stages(engine: Engine, run_id: int, states: Mapping[str, str], *, stalled: int | None = None) -> None:
    """Record stages in order with two ranks each that have started."""
    at = now() - timedelta(seconds=2)
    with write_session(engine) as session:
        for position, (name, state) in enumerate(states.items()):
            attempt = 0 if state == "queued" else 1
            done = {"queued": 0, "succeeded": 20}.get(state, 14)
            ended = at if state in ("succeeded", "failed") else None
            session.add(
                StageAttempt(
                    run_id=run_id, stage=name, attempt=attempt, position=position, title=name.capitalize(), state=state,
                    done=done, total=20, unit="updates", started_at=at if attempt else None, finished_at=ended,
                    exit_code=0 if state == "succeeded" else None,
                )
            )  # fmt: skip
            session.flush()
            for rank in range(2 if attempt else 0):
                session.add(
                    RankRow(
                        run_id=run_id, stage=name, attempt=1, rank=rank, local_rank=rank, node="here", host="here",
                        pid=4000 + rank, device="cpu", phase="forward", step=14, last_seen=at, stalled=rank == stalled,
                    )
                )  # fmt: skip


def add_events(session: Session, run_id: int, stage: str, events: Sequence[Mapping[str, Any]]) -> None:
    """Append events to a run under the next numbers; each is the line of rank `rank` (0 unless given)."""
    run = session.get(Run, run_id)
    assert run is not None
    for event in events:
        line = {"seq": run.next_event_id, "t": now().timestamp(), **event}
        rank = int(line.pop("rank", 0))
        session.add(
            RunEvent(run_id=run_id, id=run.next_event_id, stage=stage, attempt=1, rank=rank, type=line["type"],
                     line=orjson.dumps(line).decode())
        )  # fmt: skip
        run.next_event_id += 1
    session.add(run)


def add_metric(
    session: Session,
    run_id: int,
    stage: str,
    rank: int,
    values: Sequence[float],
    *,
    key: str = "loss",
    steps: Sequence[float] = (),
) -> None:
    """Append the points of a series, at steps from 0 on unless given, and an event number for them."""
    run = session.get(Run, run_id)
    assert run is not None
    packed, points = pack(map(float, steps or range(len(values)))), pack(values)
    session.add(
        MetricChunk(run_id=run_id, first_event_id=run.next_event_id, key=key, rank=rank, stage=stage, attempt=1,
                    count=len(values), steps=packed, points=points)
    )  # fmt: skip
    run.next_event_id += 1
    session.add(run)


def add_usage(engine: Engine, run_id: int, stage: str, *, begin: float = 1.0, gpu: bool = False) -> None:
    """Add four samples of two ranks, two seconds apart from `begin` seconds on: rank 0 uses 75 % of a core."""
    with write_session(engine) as session:
        run = session.get(Run, run_id)
        assert run is not None
        at = (run.started_at or run.created_at).timestamp() + begin
        session.add_all(
            RankUsage(
                run_id=run_id, stage=stage, attempt=1, rank=rank, at=at + 2 * step, cpu_seconds=1 + step * (1.5 + rank),
                rss_bytes=(100 + rank) << 20, gpu_bytes=3 << 30 if gpu else None, gpu_percent=87.0 if gpu else None,
            )
            for step in range(4)
            for rank in range(2)
        )  # fmt: skip


def write_log(settings: Settings, run_id: int, stage: str, rank: int, text: str, *, stream: str = "stdout") -> Path:
    """Append to a rank's captured output and return its path."""
    path = RunPaths(settings.runs_dir / str(run_id)).attempt(stage, 1).log(rank, stream)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        handle.write(text)
    return path


def save_result(settings: Settings, run_id: int, result: Result) -> None:
    """Write a result and the picture named by its panels."""
    paths = RunPaths(settings.runs_dir / str(run_id))
    picture = paths.artifacts / "no_sync" / "sample.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), (90, 120, 160)).save(picture)
    result.save(paths.result)


def fill(settings: Settings, engine: Engine) -> dict[str, int]:
    """Fill an empty data directory with one run of each appearance and return their numbers by name."""
    migrate(settings)
    ids = _add_ended(engine) | _add_open(engine)
    _add_details(settings, engine, ids)
    add_keeping(settings, engine, ids["passed"], HOSTILE)
    return ids


def _add_ended(engine: Engine) -> dict[str, int]:
    common: dict[str, Any] = {"reason": "completed", "moves": MOVES}
    return {
        "passed": add_run(engine, "succeeded", verdict="pass", tags=["nightly"], name="baseline", **common),
        "broken": add_run(engine, "succeeded", verdict="fail", params={"seed": 48}, **common),
        "cifar": add_run(engine, "succeeded", verdict="pass", kind="cifar", params={"mode": "no_sync"}, **common),
        "failed": add_run(
            engine,
            "failed",
            reason="rank_signal",
            moves=MOVES,
            name=HOSTILE,
            diagnosis="Rank 1 was ended by signal 9 in phase backward at step 14. The launcher stopped the others.",
            failure={"rank": 1, "node": "here", "phase": "backward", "step": 14, "signal": 9, "last_line": HOSTILE},
        ),
        "cancelled": add_run(engine, "cancelled", reason="cancelled_by_user", moves=(*MOVES, "stopping")),
    }


def _add_open(engine: Engine) -> dict[str, int]:
    why = "1 CPU run is active and MAX_CPU_RUNS is 1"
    return {
        "running": add_run(engine, "running", moves=("starting",)),
        "queued": add_run(engine, "queued", waiting_for=why, backend=None, device=None),
    }


def _add_details(settings: Settings, engine: Engine, ids: Mapping[str, int]) -> None:
    for name in ("passed", "broken", "cifar"):
        add_stages(engine, ids[name], {"prepare": "succeeded", "distributed": "succeeded", "compare": "succeeded"})
    add_stages(engine, ids["failed"], {"prepare": "succeeded", "distributed": "failed", "compare": "queued"})
    going_on = {"prepare": "succeeded", "distributed": "running", "compare": "queued"}
    add_stages(engine, ids["running"], going_on, stalled=1)
    save_result(settings, ids["passed"], make_result(panels=every_panel()))
    save_result(settings, ids["broken"], make_result(error=0.0216, panels=every_panel()[:5]))
    save_result(settings, ids["cifar"], make_result("cifar", panels=every_panel()))
    with write_session(engine) as session:
        session.add(AuditEntry(at=now(), actor="user", action="cancel", run_id=ids["cancelled"], detail=HOSTILE))
        session.add(AuditEntry(at=now(), actor="user", action="delete", run_id=999, detail="cifar, failed, ''"))
    for name in ("passed", "running", "failed"):
        add_story(engine, ids[name])
        add_usage(engine, ids[name], "distributed")
        write_log(settings, ids[name], "distributed", 0, "epoch 0\nepoch 1\n")
        write_log(settings, ids[name], "distributed", 1, f"warning: {HOSTILE}\n", stream="stderr")


def add_story(engine: Engine, run_id: int) -> None:
    """Add messages and a loss curve per rank to the stage `distributed`."""
    messages = [
        {"type": "message", "level": "info", "text": f"update {step} done", "rank": step % 2} for step in range(12)
    ]
    with write_session(engine) as session:
        add_events(session, run_id, "distributed", messages)
        add_events(session, run_id, "distributed", [{"type": "message", "level": "warning", "text": HOSTILE}])
        for rank in range(2):
            curve = [1.4 - 0.01 * step - 0.02 * rank for step in range(60)]
            add_metric(session, run_id, "distributed", rank, curve)
