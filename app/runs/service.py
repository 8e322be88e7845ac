"""Actions on runs: submit, cancel, retry. (Deleting is in `app.runs.removal`.)"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, select

from app.clock import now
from app.db import Lock, database_time, lock, read_session, write_session
from app.runs import queue
from app.runs.cluster import check_cluster
from app.runs.devices import check_devices
from app.runs.documents import reproduce
from app.runs.errors import Conflict, Refused
from app.runs.models import AuditEntry, Run
from app.runs.removal import clear_leftovers
from app.runs.requests import RunRequest, check_key, check_launch, check_program, complete_params, find_kind, may_start
from app.runs.results.checkpoints import CheckpointSource, adopt_checkpoint, newest_checkpoint
from app.runs.states import State
from app.runs.store import get_run, last_stage, tags_of
from app.runs.workers import live_workers
from app.settings import Settings
from trainer.contract.kinds import kinds, program_of
from trainer.contract.params import CommonParams
from trainer.contract.paths import RunPaths

KEY_TAKEN: Final = "idempotency_key_reused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The actions; each is recorded in the audit log, in its own transaction."""

    engine: Engine
    settings: Settings

    def submit(self, request: RunRequest, *, actor: str, key: str | None = None) -> int:
        """Record a run and return its number; the same `key` and request give the same run.

        Raises Refused naming the field; nothing is recorded then.
        """
        key = check_key(key)
        if key is not None:
            with read_session(self.engine) as session:
                known = _find_key(session, key, request)
            if known is not None:
                return known
        params = complete_params(request, self.settings)
        check_launch(request.launch, params, self.settings)
        check_program(request, params, self.settings)
        columns = _columns(request, params, actor)
        try:
            with write_session(self.engine) as session:
                known = _find_key(session, key, request) if key is not None else None
                if known is not None:
                    return known
                workers = live_workers(session)
                check_devices(params, request.launch, workers)
                check_cluster(request.launch, params, workers)
                columns |= {"idempotency_key": key, "request_digest": request.digest()}
                return self._insert(session, request.tags, action="submit", note="", **columns)
        except IntegrityError:  # on a database with concurrent writers, the unique index decides
            with read_session(self.engine) as session:
                known = _find_key(session, key or "", request)
            if known is None:
                raise
            return known

    def submit_own(self, request: RunRequest, *, actor: str, worker_id: str, lease_seconds: float) -> int:
        """Record a run that its own worker carries out at once, outside the queue, and return its number.

        Raises Refused naming the field; then nothing was recorded.
        """
        params = complete_params(request, self.settings)
        with write_session(self.engine) as session:
            columns = _columns(request, params, actor)
            run_id = self._insert(session, request.tags, action="submit", note="", **columns)
            note = "in the terminal of whoever recorded it"
            begun: dict[str, Any] = {"note": note, "actor": worker_id, "worker_id": worker_id}
            until = database_time(session) + timedelta(seconds=lease_seconds)
            queue.move(session, run_id, State.QUEUED, State.STARTING, lease_until=until, **begun)
            return run_id

    def submit_records(self, request: RunRequest, records: Path, *, actor: str) -> int:
        """Record a run whose program ran elsewhere; the folder `records`, what the probe wrote there, becomes its own.

        Raises Refused naming the field; then nothing was recorded and the folder is where it was.
        """
        params = complete_params(request, self.settings)
        stage = next(stage.name for stage in find_kind(request.kind).stages(params) if stage.program is not None)
        with write_session(self.engine, unhurried=True) as session:
            run_id = self._insert(session, request.tags, action="import", note="", **_columns(request, params, actor))
            place = RunPaths(self.settings.runs_dir / str(run_id)).attempt(stage, 1).root
            place.parent.mkdir(parents=True)
            records.rename(place)  # before the commit: no worker may start the run while its records are missing
            return run_id

    def _insert(self, session: Session, tags: list[str], *, action: str, note: str, **columns: Any) -> int:
        actor = columns["created_by"]
        lock(session, Lock.RUN_FOLDERS, shared=True)
        run = queue.insert_run(session, tags=tags, actor=actor, note=note, **columns)
        run_id = queue.number_of(run)
        clear_leftovers(self.settings.runs_dir, run_id)
        _audit(session, actor, action, run_id, note)
        return run_id

    def cancel(self, run_id: int, *, actor: str) -> None:
        """Request the cancellation of a run; repeating it changes nothing.

        Raises NotFound, Conflict if it has ended.
        """
        with write_session(self.engine) as session:
            run = get_run(session, run_id)
            before = State(run.state)
            if before.is_final:
                raise Conflict("already_final", f"run {run_id} has ended ({before}); there is nothing to cancel")
            asked_before = run.cancel_requested_at is not None
            queue.request_cancel(session, run_id, actor)
            if not asked_before:
                _audit(session, actor, "cancel", run_id, f"was {before}")

    def retry(self, run_id: int, *, resume: bool, actor: str) -> int:
        """Record a new run with the parameters of an ended one and return its number.

        With `resume` it starts from the old run's newest valid checkpoint, which becomes part of the new run's folder.
        Raises NotFound, Conflict if the old run has not ended or has no valid checkpoint, Refused if the executor
        here does not support its launch options.
        """
        with read_session(self.engine) as session:
            old = get_run(session, run_id)
            _check_repeatable(old, self.settings)
            tags = tags_of(session, [run_id]).get(run_id, [])
            stage = last_stage(session, run_id)
        if not State(old.state).is_final:
            raise Conflict("not_final", f"run {run_id} is {old.state}; cancel it or wait for its end before a retry")
        ranks = CommonParams.model_construct(world_size=int(old.params.get("world_size", 2)))
        check_launch(old.launch, ranks, self.settings)
        source = newest_checkpoint(self.settings.runs_dir / str(run_id), stage) if resume else None
        columns = {name: getattr(old, name) for name in ("name", "kind", "preset", "params", "launch")}
        columns |= {"created_by": actor, "retry_of": run_id}
        note = f"retry of run {run_id}" + ("" if source is None else _origin(source))
        with write_session(self.engine, unhurried=True) as session:
            new_id = self._insert(session, tags, action="retry", note=note, **columns)
            if source is not None:
                # Before the commit: no worker may start the run before its checkpoint exists.
                adopt_checkpoint(source, self.settings.runs_dir / str(new_id))
                run = queue.require_run(session, new_id)
                run.resume_from = source.relative
                session.add(run)
            return new_id


def _origin(source: CheckpointSource) -> str:
    skipped = "".join(f"; skipped {problem}" for problem in source.skipped)
    return f" from {source.relative}{skipped}"


def _columns(request: RunRequest, params: CommonParams, actor: str) -> dict[str, Any]:
    return {
        "name": request.name,
        "kind": request.kind,
        "preset": request.preset or "quick",
        "params": params.model_dump(mode="json"),
        "launch": request.launch,
        "created_by": actor,
    }


def _check_repeatable(run: Run, settings: Settings) -> None:
    spec = kinds().get(run.kind)
    if spec is None or not spec.traces:
        return
    program = program_of(spec, spec.params.model_validate(run.params))
    if program is not None and not may_start(program, settings):
        why = f"run {run.id} traced a command that ran in a terminal; start it there again: {reproduce(run)}"
        raise Conflict("not_repeatable", why)


def _find_key(session: Session, key: str, request: RunRequest) -> int | None:
    run = session.exec(select(Run).where(Run.idempotency_key == key)).first()
    if run is None:
        return None
    if run.request_digest != request.digest():
        raise Refused(
            KEY_TAKEN, f"Idempotency-Key {key!r} was used for run {run.id} with another body; use a new key or no key"
        )
    return run.id


def _audit(session: Session, actor: str, action: str, run_id: int | None, detail: str = "") -> None:
    session.add(AuditEntry(at=now(), actor=actor, action=action, run_id=run_id, detail=detail))
