"""Diagnosis texts for failed runs: which rank, where, what happened, and what to do. Pure."""

import signal
from collections.abc import Sequence
from typing import Final

from app.runs.states import Reason
from worker.culprit import ended_well
from worker.facts import Facts, RankEnd

ADVICE: Final = {
    Reason.OUT_OF_MEMORY: (
        "A smaller batch changes both expected counts, so runs that are compared must be started again together."
    ),
    Reason.LAUNCH_ERROR: "Correct the environment and start again; there is no fallback to another backend.",
    Reason.NO_DEVICES: "Correct the environment before touching the formula; there is no fallback to the CPU.",
}


def signal_name(number: int) -> str:
    """Return the name of a signal with its number."""
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"


def end_of(rank: RankEnd) -> str:
    """Describe how a rank ended."""
    if rank.finished and rank.exit_code != 0:
        return "it had reported that its work was done"
    if rank.signal is not None:
        return f"it was killed by {signal_name(rank.signal)}"
    return "how it ended is unknown" if rank.exit_code is None else f"it exited with code {rank.exit_code}"


def place_of(rank: RankEnd) -> str:
    """Describe the position of a rank."""
    step = "" if rank.step is None else f" at step {rank.step}"
    return f"in phase {rank.phase or 'start'}{step}"


def checkpoint_of(facts: Facts) -> str:
    """Name the checkpoint a retry can continue from."""
    if facts.checkpoint is None:
        return "There is no complete checkpoint."
    return f"The newest complete checkpoint is {facts.checkpoint}."


def processes_ended(facts: Facts) -> str:
    """Describe how many processes were ended, and whether any is left."""
    count = facts.processes_ended
    ended = "No process had to be ended" if count == 0 else f"{count} process{'es were' if count > 1 else ' was'} ended"
    if facts.processes_left:
        return f"{ended}, {facts.processes_left} could not be ended."
    return f"{ended}, none is left, and the devices are free."


def cancelled(facts: Facts) -> str:
    """Return the text of a cancelled run."""
    return f"Cancelled by the user during stage {facts.stage}. {processes_ended(facts)}"


def rank_failed(culprit: RankEnd, reason: Reason, facts: Facts) -> str:
    """Return the text of a run whose failure one rank explains."""
    parts = [_first_sentence(culprit, facts)]
    if culprit.exit_code == 0 or culprit.finished:
        parts.append(_early_exit(culprit, facts))
    if culprit.last_line:
        parts.append(f"Its last line: {culprit.last_line}")
    if reason is Reason.OUT_OF_MEMORY and culprit.signal is not None:
        parts.append(f"The kernel killed {facts.oom_kills} process(es) of this control group because memory ran out.")
    parts += [_others(culprit, facts), ADVICE.get(reason, ""), checkpoint_of(facts)]
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts if part)


def _first_sentence(culprit: RankEnd, facts: Facts) -> str:
    if facts.launcher == "python":
        return f"The process of stage {facts.stage} failed {place_of(culprit)}: {end_of(culprit)}"
    who = f"Rank {culprit.rank}{on_node(culprit.rank, facts)}"
    return f"{who} failed first, {place_of(culprit)} of stage {facts.stage}: {end_of(culprit)}"


def on_node(rank: int, facts: Facts) -> str:
    """Name the node of a rank if the ranks are on several."""
    several = len(set(facts.nodes.values())) > 1
    return f" on {facts.nodes[rank]}" if several and rank in facts.nodes else ""


def ended_by_scheduler(facts: Facts) -> str:
    """Return the text for an attempt that a scheduler ended."""
    return f"{facts.why} {processes_ended(facts)} {checkpoint_of(facts)}"


def _early_exit(culprit: RankEnd, facts: Facts) -> str:
    done = "before its work was done"
    if culprit.progress is not None and culprit.progress[1] is not None:
        count, total, unit = culprit.progress
        done = f"after it had finished {count:g} of {total:g} {unit or 'steps'}"
    most = max(rank.collective for rank in facts.ranks)
    counts = ""
    if most > culprit.collective:
        counts = f", after {culprit.collective} collectives, while others entered {most} and are waiting"
    return f"Rank {culprit.rank} ended early, {done}{counts}; even exit code 0 would not be a success"


def _others(culprit: RankEnd, facts: Facts) -> str:
    stopped = [rank.rank for rank in facts.ranks if rank.rank != culprit.rank and not ended_well(rank)]
    if not stopped:
        return ""
    who = f"rank {stopped[0]} was" if len(stopped) == 1 else f"ranks {listing(stopped)} were"
    return f"After that, {who} stopped by the launcher, which is a consequence, not the cause"


def listing(numbers: Sequence[int]) -> str:
    """Return numbers as a list in a sentence."""
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def launcher_ended(facts: Facts) -> str:
    """Return the text for a launcher that ended without a rank that explains why."""
    if facts.main_signal is not None:
        how = f"was killed from outside by {signal_name(facts.main_signal)}"
    else:
        how = f"exited with code {facts.main_exit_code} although no rank failed"
    text = f"The torchrun agent (pid {facts.main_pid}) of stage {facts.stage} {how}; no rank failed by itself."
    last = f" Its last line: {facts.main_last_line}." if facts.main_last_line else ""
    return f"{text}{last} {processes_ended(facts)} {checkpoint_of(facts)}"


def program_ended(facts: Facts) -> str:
    """Return the text when a program of the user's failed and none of its ranks explains why."""
    if facts.main_signal is not None:
        how = f"was ended by {signal_name(facts.main_signal)}"
    else:
        how = f"ended with exit code {facts.main_exit_code}"
    ranks = "no rank failed before it" if facts.ranks else "no rank had joined a process group by then"
    last = f" Its last line: {facts.main_last_line}" if facts.main_last_line else ""
    return f"The program {how}; {ranks}.{last}"


def launch_error(facts: Facts) -> str:
    """Return the text for ranks that could not be started."""
    return f"The ranks of stage {facts.stage} could not be started: {facts.launch_error}. {processes_ended(facts)}"


def preempted(facts: Facts) -> str:
    """Return the text for a run that saved after an external request to end."""
    return (
        f"A SIGTERM from outside asked stage {facts.stage} to end; all ranks agreed on a step, saved and exited. "
        f"{checkpoint_of(facts)} A retry with resume continues from there."
    )


def disk_full(rank: RankEnd | None, facts: Facts) -> str:
    """Return the text for a full disk."""
    who = "The launcher" if rank is None else f"Rank {rank.rank}, {place_of(rank)},"
    line = facts.launch_error if rank is None else rank.last_line
    return (
        f"{who} could not write in stage {facts.stage}, because the disk is full: {line}. "
        f"Free some space (`ddp-audit clean` lists what can be removed) and retry. {checkpoint_of(facts)}"
    )


def supervisor_without_space(facts: Facts) -> str:
    """Return the text for a disk too full for the exit report."""
    return (
        f"The disk is full: the supervisor of stage {facts.stage} could not write its report. "
        f"Free some space (`ddp-audit clean` lists what can be removed) and retry. {checkpoint_of(facts)}"
    )


def supervisor_lost(facts: Facts) -> str:
    """Return the text for a shim that vanished without a report."""
    if facts.why:
        return f"{facts.why} {checkpoint_of(facts)}"
    return (
        f"The supervisor of stage {facts.stage} was killed before it could report how the ranks ended, so their exit "
        f"codes are unknown. Its processes were found by their marker: {processes_ended(facts)} {checkpoint_of(facts)}"
    )


def folder_gone(facts: Facts) -> str:
    """Return the text for a run whose folder was removed by hand while it was active."""
    return (
        f"The folder of the run was removed while stage {facts.stage} ran, so it could not be recorded how its ranks "
        f"ended. {processes_ended(facts)}"
    )


def rebooted(facts: Facts) -> str:
    """Return the text for a machine that was restarted during the run."""
    return (
        f"The machine was restarted while stage {facts.stage} ran. Its processes are gone, and no current "
        f"process was touched. {checkpoint_of(facts)}"
    )


def time_limit(stage: str, seconds: float) -> str:
    """Return the text for a run that took too long."""
    return (
        f"The run was stopped in stage {stage} because it reached its limit of {seconds:g} seconds "
        "(DDP_AUDIT_RUN_LIMIT_SECONDS)."
    )


def invalid_result(problem: str) -> str:
    """Return the text for a run whose stages succeeded but whose result is invalid."""
    return f"Every stage succeeded, but result.json cannot be used: {problem}"
