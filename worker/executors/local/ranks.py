"""The shim's monitoring of the ranks of its attempt: which died, when and why; standard library only.

The ranks are children of the launcher, which polls them ten times a second and may itself be killed. A pidfd reports a
death immediately and in order, and the kernel keeps the exit status readable until the launcher reaps its child.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.host import processes
from app.host.processes import Identity
from trainer.contract.crumb import Crumb, read_crumb
from trainer.contract.paths import AttemptPaths


def rank_in(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return (rank, local rank) of a process that torchrun started, by its environment; None for any other.

    Between fork and exec, or while a fork rewrites it, an environment may be incomplete.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    rank, local_rank = environment.get("RANK", ""), environment.get("LOCAL_RANK", "")
    return (int(rank), int(local_rank)) if rank.isdigit() and local_rank.isdigit() else None


@dataclass(slots=True, kw_only=True)
class Rank:
    """One rank as the shim sees it."""

    rank: int
    local_rank: int
    process: Identity
    descriptor: int | None
    died_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None


class Ranks:
    """All ranks of one attempt."""

    def __init__(self, paths: AttemptPaths, *, expected: int) -> None:
        self._paths, self._expected = paths, expected
        self._ranks: dict[int, Rank] = {}

    @property
    def complete(self) -> bool:
        """Whether every expected rank has been seen."""
        return len(self._ranks) >= self._expected

    @property
    def any_dead(self) -> bool:
        """Whether a rank has ended."""
        return any(rank.died_at is not None for rank in self._ranks.values())

    @property
    def all_dead(self) -> bool:
        """Whether every expected rank has ended."""
        return self.complete and all(rank.died_at is not None for rank in self._ranks.values())

    @property
    def any_failed(self) -> bool:
        """Whether a rank ended in any other way than with exit code 0 after its last event."""
        return any(rank.died_at is not None and not self._ended_well(rank) for rank in self._ranks.values())

    def others_wait_in_vain(self, seconds: float) -> bool:
        """Whether a rank has ended and all others have been in one collective for `seconds`: it will never complete."""
        living = [rank for rank in self._ranks.values() if rank.died_at is None]
        crumbs = [self._crumb(rank.rank) for rank in living]
        latest = time.time() - seconds
        return bool(living) and all(crumb is not None and crumb.inside and crumb.time < latest for crumb in crumbs)

    def look(self, launcher: int) -> None:
        """Find ranks that the launcher has started since the last call."""
        if self.complete:
            return
        for pid in processes.all_pids():
            found = processes.stat(pid)
            if found is None or found.parent != launcher:
                continue
            place = rank_in(processes.environment_of(pid))
            if place is not None and place[0] not in self._ranks:
                self.add(pid, rank=place[0], local_rank=place[1])

    def add(self, pid: int, *, rank: int, local_rank: int) -> None:
        """Watch a process as the given rank."""
        process = Identity.of(pid)
        if process is not None:
            descriptor = process.open()
            self._ranks[rank] = Rank(rank=rank, local_rank=local_rank, process=process, descriptor=descriptor)

    def living(self) -> list[tuple[int, Identity]]:
        """Return (rank, process) of the ranks that have not ended."""
        return [(number, rank.process) for number, rank in self._ranks.items() if rank.died_at is None]

    def descriptors(self) -> list[int]:
        """Return file descriptors that become readable when a rank has ended."""
        return [rank.descriptor for rank in self._ranks.values() if rank.descriptor is not None]

    def note_deaths(self) -> None:
        """Record the time and, if the kernel still has it, the status of ranks that ended."""
        for rank in self._ranks.values():
            if rank.died_at is None and not rank.process.alive:
                rank.died_at = time.time()
                found = rank.process.stat()
                if found is not None:
                    rank.exit_code, rank.signal = processes.exit_of(found.wait_status)
                if rank.descriptor is not None:
                    os.close(rank.descriptor)
                    rank.descriptor = None

    def note_status(self, pid: int, wait_status: int) -> None:
        """Record the status of a child that the shim reaped itself."""
        for rank in self._ranks.values():
            if rank.process.pid == pid:
                rank.died_at = rank.died_at or time.time()
                rank.exit_code, rank.signal = processes.exit_of(wait_status)

    @property
    def launcher_error(self) -> str | None:
        """Why the launcher could not start the ranks, as reported by the launcher."""
        error = self._launcher_report().get("launcher_error")
        return None if error is None else str(error)

    def report(self) -> dict[str, Any]:
        """Return `ranks` in rank order and `first`, the rank that ended first and when."""
        entries = {number: self._entry(rank) for number, rank in self._ranks.items()}
        for seen in self._launcher_report().get("ranks", []):
            entry = entries.setdefault(
                int(seen["rank"]), {"died_at": seen.get("ended_at"), "exit_code": None, "signal": None}
            )
            if entry["exit_code"] is None and entry["signal"] is None:
                entry |= {"exit_code": seen["exit_code"], "signal": seen["signal"]}
            entry |= {
                "rank": seen["rank"],
                "local_rank": seen["local_rank"],
                "pid": seen["pid"],
                "error": seen["error"],
            }
        ended = sorted((item["died_at"], item["rank"]) for item in entries.values() if item["died_at"] is not None)
        first = {"rank": ended[0][1], "at": ended[0][0]} if ended else None
        return {"ranks": [entries[number] for number in sorted(entries)], "first": first}

    def _entry(self, rank: Rank) -> dict[str, Any]:
        return {
            "rank": rank.rank,
            "local_rank": rank.local_rank,
            "pid": rank.process.pid,
            "exit_code": rank.exit_code,
            "signal": rank.signal,
            "died_at": rank.died_at,
            "error": None,
        }

    def _launcher_report(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(self._paths.ranks_exit.read_text())
        except (OSError, ValueError):
            return {}
        return document

    def _ended_well(self, rank: Rank) -> bool:
        crumb = self._crumb(rank.rank)
        code_fits = rank.exit_code == 0 or (rank.exit_code is None and rank.signal is None)
        return code_fits and crumb is not None and crumb.phase == "end"

    def _crumb(self, rank: int) -> Crumb | None:
        return read_crumb(self._paths.breadcrumb(rank))
