"""Finds the rank that failed first: a rank that lost its connection is a victim, not the cause. Pure."""

import math
import re
import signal
from typing import Final

from trainer.contract.exits import EXIT_PREEMPTED
from worker.facts import Facts, RankEnd

EXIT_TERMINATED: Final = 128 + signal.SIGTERM
CONNECTION: Final = re.compile(
    r"connection (was |has been )?(likely )?(closed|reset|refused|aborted)|closed by peer|broken pipe|"
    r"remote process exited|remote peer|timed out|connection lost|launcher \(pid \d+\) ended",
    re.IGNORECASE,
)
PARENT_DEATH_SECONDS: Final = 1.0
"""If a rank gets SIGKILL within this time of the launcher's violent end, that end is the cause."""

CAUSE, VICTIM, STOPPED, WELL = range(4)


def ended_well(rank: RankEnd) -> bool:
    """Whether a rank finished its work and exited with code 0."""
    return rank.exit_code == 0 and rank.finished


def first_failed(facts: Facts) -> RankEnd | None:
    """Return the rank to name: the earliest of the most significant class. None if no rank explains the failure."""
    ranked = sorted(
        (role_of(rank, facts), failed_at(rank), rank.rank != facts.first, rank.rank)
        for rank in facts.ranks
        if role_of(rank, facts) != WELL
    )
    if not ranked or ranked[0][0] == STOPPED:
        return None
    return next(rank for rank in facts.ranks if rank.rank == ranked[0][3])


def failed_at(rank: RankEnd) -> float:
    """Return when a rank failed: the time of its exception, else of its exit; infinity if neither is known."""
    return min((at for at in (rank.error_at, rank.died_at) if at is not None), default=math.inf)


def role_of(rank: RankEnd, facts: Facts) -> int:
    """Classify a rank's end: CAUSE, VICTIM of another's end, STOPPED by supervisor or launcher, or WELL."""
    if rank.finished and left_early(rank, facts):
        return CAUSE  # whatever ended its process, the others were already waiting for it
    if _stopped(rank, facts):
        return STOPPED
    if rank.exit_code == 0:
        return WELL if rank.finished else CAUSE
    if rank.signal == signal.SIGTERM or rank.exit_code in {EXIT_TERMINATED, EXIT_PREEMPTED}:
        return VICTIM
    if rank.exit_code is not None and CONNECTION.search(rank.last_line):
        return VICTIM
    return CAUSE


def left_early(rank: RankEnd, facts: Facts) -> bool:
    """Whether a rank that reported completion skipped a collective that other, unfinished ranks had entered."""
    others = [other for other in facts.ranks if other.rank != rank.rank and not other.finished]
    return any(other.collective > rank.collective for other in others)


def _stopped(rank: RankEnd, facts: Facts) -> bool:
    if rank.signal is None and rank.exit_code is None:
        return True  # never seen to exit by itself
    if rank.signal != signal.SIGKILL or rank.died_at is None:
        return False
    if facts.killed_at is not None and rank.died_at >= facts.killed_at:
        return True
    launcher_died = facts.launcher == "torchrun" and facts.main_signal is not None and facts.main_ended_at is not None
    return launcher_died and rank.died_at >= (facts.main_ended_at or 0.0) - PARENT_DEATH_SECONDS
