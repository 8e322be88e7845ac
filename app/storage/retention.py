"""Retention policies: which ended runs a policy would remove, and removing exactly those that were shown.

A policy is first planned and shown; applying it requires the digest of that plan, so that a run that has ended or was
pinned in between is never removed unseen.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pydantic import Field
from sqlalchemy import Engine, select
from sqlmodel import col

from app.clock import now, rfc3339
from app.db import read_session
from app.documents import Document
from app.formats import many
from app.runs.errors import Conflict, ServiceError, refused
from app.runs.models import Run
from app.runs.removal import delete_run
from app.runs.states import FINAL
from app.settings import Settings
from app.storage.usage import run_sizes

MOST_DAYS: Final = 36_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits of what is kept; None means no limit. Raises Refused if no limit is set, or one is negative."""

    max_age_days: float | None = None
    """Days since the run's end."""
    max_runs: int | None = None
    """Number of newest ended runs to keep; pinned runs are kept in addition."""
    max_bytes: int | None = None
    """Of all run folders together: pinned and active runs count, but only others can be removed."""
    kind: str | None = None
    """Only runs of this kind are removed, counted and summed."""

    def __post_init__(self) -> None:
        limits = {"max_age_days": self.max_age_days, "max_runs": self.max_runs, "max_bytes": self.max_bytes}
        if all(limit is None for limit in limits.values()):
            raise refused("max_age_days", f"needs at least one limit of {', '.join(limits)}")
        for name, limit in limits.items():
            if limit is not None and not limit >= 0:  # also false for NaN
                raise refused(name, f"must be 0 or more, given {limit}")
        if self.max_age_days is not None and self.max_age_days > MOST_DAYS:
            raise refused("max_age_days", f"must be at most {MOST_DAYS}, given {self.max_age_days}")


class Candidate(NamedTuple):
    """Columns of a run that a policy uses."""

    id: int
    kind: str
    name: str
    state: str
    pinned: bool
    finished_at: datetime | None


class Doomed(Document):
    """A run that the policy removes, and why."""

    id: int
    kind: str
    name: str
    state: str
    finished_at: str | None
    bytes: int
    why: str


class Spared(Document):
    """A run that no policy removes, and why."""

    id: int
    kind: str
    name: str
    state: str
    bytes: int
    why: str


class Plan(Document):
    """The current effect of a policy."""

    digest: str = Field(alias="plan", description="Digest of the runs to remove.")
    remove: list[Doomed] = Field(description="First ended first.")
    remove_bytes: int
    spared: list[Spared] = Field(
        description="Pinned runs and runs that have not ended, newest first; other kept runs are within the limits."
    )
    kept_runs: int
    kept_bytes: int
    over_bytes: int = Field(
        description="Bytes above `max_bytes` that remain because the kept runs are pinned or active."
    )


class Skipped(Document):
    """A run of a plan that was not removed, and why."""

    id: int
    why: str


class Applied(Document):
    """The outcome of applying a plan."""

    removed: list[int]
    bytes: int
    skipped: list[Skipped]


def plan(engine: Engine, settings: Settings, policy: Policy) -> Plan:
    """Return what `policy` would remove now; removes nothing."""
    sizes = run_sizes(engine, settings.runs_dir)
    query = select(*(col(getattr(Run, name)) for name in Candidate._fields)).where(col(Run.deleting).is_(False))
    query = query.order_by(col(Run.finished_at).desc().nulls_last(), col(Run.id).desc())
    if policy.kind is not None:
        query = query.where(col(Run.kind) == policy.kind)
    with read_session(engine) as session:
        runs = [Candidate(*row) for row in session.execute(query)]
    # Last ended first; a run recorded after the sizes were read ended too recently to be considered.
    ended = [run for run in runs if run.state in FINAL and not run.pinned and run.id in sizes]
    held = sum(sizes[run.id].bytes for run in runs if run.id in sizes)
    why = _reasons(ended, {run.id: sizes[run.id].bytes for run in ended}, held, policy)
    remove = [_doomed(run, sizes[run.id].bytes, why[run.id]) for run in reversed(ended) if run.id in why]
    kept_bytes = held - sum(item.bytes for item in remove)
    over = 0 if policy.max_bytes is None else max(0, kept_bytes - policy.max_bytes)
    spared = [_spared(run, sizes[run.id].bytes if run.id in sizes else 0) for run in runs if _is_spared(run)]
    return Plan(
        digest=_digest(remove),
        remove=remove,
        remove_bytes=sum(item.bytes for item in remove),
        spared=spared,
        kept_runs=len(runs) - len(remove),
        kept_bytes=kept_bytes,
        over_bytes=over,
    )


def _digest(remove: list[Doomed]) -> str:
    return hashlib.sha256(",".join(str(item.id) for item in remove).encode()).hexdigest()[:16]


def _is_spared(run: Candidate) -> bool:
    return run.pinned or run.state not in FINAL


def _spared(run: Candidate, size: int) -> Spared:
    why = "pinned" if run.pinned else f"has not ended: {run.state}"
    return Spared(id=run.id, kind=run.kind, name=run.name, state=run.state, bytes=size, why=why)


def _reasons(ended: list[Candidate], sizes: dict[int, int], held: int, policy: Policy) -> dict[int, str]:
    """Return run number -> why it is removed; `ended` is sorted newest first."""
    why: dict[int, str] = {}
    if policy.max_age_days is not None:
        oldest = now() - timedelta(days=policy.max_age_days)
        why |= {
            run.id: f"ended more than {policy.max_age_days:.15g} days ago"
            for run in ended
            if run.finished_at is not None and run.finished_at < oldest
        }
    if policy.max_runs is not None:
        for place, run in enumerate(ended, start=1):
            if place > policy.max_runs:
                why.setdefault(run.id, f"number {place} from the newest, at most {policy.max_runs} are kept")
    if policy.max_bytes is not None:
        held -= sum(sizes[run_id] for run_id in why)
        for run in reversed(ended):
            if held <= policy.max_bytes:
                break
            if run.id not in why and sizes[run.id]:
                why[run.id] = f"{held} bytes are in use, at most {policy.max_bytes} are kept"
                held -= sizes[run.id]
    return why


def _doomed(run: Candidate, size: int, why: str) -> Doomed:
    return Doomed(
        id=run.id,
        kind=run.kind,
        name=run.name,
        state=run.state,
        finished_at=rfc3339(run.finished_at),
        bytes=size,
        why=why,
    )


def apply(engine: Engine, settings: Settings, policy: Policy, *, seen: str, actor: str) -> Applied:
    """Remove the runs of the plan with digest `seen` and return what was removed.

    Raises Conflict if the policy would remove different runs by now; nothing is removed then. A run that is pinned or
    gone when its turn comes is skipped and reported.
    """
    present = plan(engine, settings, policy)
    if present.digest != seen:
        raise Conflict(
            "plan_changed",
            f"the policy would now remove {many(len(present.remove), 'run')} (plan {present.digest}), "
            f"not those of plan {seen[:40]!r}; check the new plan first",
        )
    removed: list[int] = []
    skipped: list[Skipped] = []
    for item in present.remove:
        try:
            delete_run(engine, settings, item.id, actor=actor, spare_pinned=True)
        except ServiceError as error:
            skipped.append(Skipped(id=item.id, why=error.detail))
        else:
            removed.append(item.id)
    gone = set(removed)
    held = sum(item.bytes for item in present.remove if item.id in gone)
    return Applied(removed=removed, bytes=held, skipped=skipped)
