"""What a person reads when a run did not end well: who, where, what, and what to do. Pure texts."""

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
    Reason.LAUNCH_ERROR: "Correct the environment and start again; the requested backend stays.",
    Reason.NO_DEVICES: "Correct the environment before touching the formula; nothing falls back to the CPU by itself.",
}


def signal_name(number: int) -> str:
    """Return a signal as people know it, with its number."""
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"


def end_of(rank: RankEnd) -> str:
    """Return how a rank ended, in words."""
    if rank.finished and rank.exit_code != 0:
        return "it had said that its work was done"
    if rank.signal is not None:
        return f"it was ended by {signal_name(rank.signal)}"
    return "how it ended is unknown" if rank.exit_code is None else f"it left with exit code {rank.exit_code}"


def place_of(rank: RankEnd) -> str:
    """Return where a rank was, in words."""
    step = "" if rank.step is None else f" at step {rank.step}"
    return f"in phase {rank.phase or 'start'}{step}"


def checkpoint_of(facts: Facts) -> str:
    """Return which checkpoint a retry could continue from."""
    if facts.checkpoint is None:
        return "There is no complete checkpoint."
    return f"The newest complete checkpoint is {facts.checkpoint}."


def processes_ended(facts: Facts) -> str:
    """Return how many processes were ended and that nothing is left of the attempt."""
    count = facts.processes_ended
    ended = "No process had to be ended" if count == 0 else f"{count} process{'es were' if count > 1 else ' was'} ended"
    if facts.processes_left:
        return f"{ended}, {facts.processes_left} could not be."
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
        parts.append(f"The kernel ended {facts.oom_kills} process(es) of this control group for lack of memory.")
    parts += [_others(culprit, facts), ADVICE.get(reason, ""), checkpoint_of(facts)]
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts if part)


def _first_sentence(culprit: RankEnd, facts: Facts) -> str:
    if facts.launcher == "python":
        return f"The process of stage {facts.stage} failed {place_of(culprit)}: {end_of(culprit)}"
    return f"Rank {culprit.rank} failed first, {place_of(culprit)} of stage {facts.stage}: {end_of(culprit)}"


def _early_exit(culprit: RankEnd, facts: Facts) -> str:
    done = "before its work was done"
    if culprit.progress is not None and culprit.progress[1] is not None:
        count, total, unit = culprit.progress
        done = f"after it had finished {count:g} of {total:g} {unit or 'steps'}"
    most = max(rank.collective for rank in facts.ranks)
    counts = ""
    if most > culprit.collective:
        counts = f", having entered {culprit.collective} collectives where others entered {most} and wait"
    return f"Rank {culprit.rank} ended early, {done}{counts}; an exit code of 0 would not make that a success"


def _others(culprit: RankEnd, facts: Facts) -> str:
    stopped = [rank.rank for rank in facts.ranks if rank.rank != culprit.rank and not ended_well(rank)]
    if not stopped:
        return ""
    who = f"rank {stopped[0]} was" if len(stopped) == 1 else f"ranks {listing(stopped)} were"
    return f"After that {who} stopped by the launcher, which is a consequence and not the cause"


def listing(numbers: Sequence[int]) -> str:
    """Return numbers as people list them."""
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def launcher_ended(facts: Facts) -> str:
    """Return the text when the launcher ended and no rank explains why."""
    if facts.main_signal is not None:
        how = f"was ended by {signal_name(facts.main_signal)} from outside"
    else:
        how = f"ended with exit code {facts.main_exit_code} without a rank that failed"
    text = f"The torchrun agent (pid {facts.main_pid}) of stage {facts.stage} {how}; no rank failed by itself."
    last = f" Its last line: {facts.main_last_line}." if facts.main_last_line else ""
    return f"{text}{last} {processes_ended(facts)} {checkpoint_of(facts)}"


def launch_error(facts: Facts) -> str:
    """Return the text when the ranks could not be started."""
    return f"The ranks of stage {facts.stage} could not be started: {facts.launch_error}. {processes_ended(facts)}"


def preempted(facts: Facts) -> str:
    """Return the text when the machine asked for the end and all ranks saved."""
    return (
        f"A SIGTERM from outside asked stage {facts.stage} to end; all ranks agreed on a step, saved and left. "
        f"{checkpoint_of(facts)} A retry that resumes goes on from there."
    )


def disk_full(rank: RankEnd | None, facts: Facts) -> str:
    """Return the text when there was no space left."""
    who = "The launcher" if rank is None else f"Rank {rank.rank}, {place_of(rank)},"
    line = facts.launch_error if rank is None else rank.last_line
    return (
        f"{who} could not write in stage {facts.stage}, because the disk is full: {line}. "
        f"Free some space (the clean command lists what can go) and retry. {checkpoint_of(facts)}"
    )


def supervisor_without_space(facts: Facts) -> str:
    """Return the text when not even the exit report could be written."""
    return (
        f"The disk is full: the supervisor of stage {facts.stage} could not write its report. "
        f"Free some space (the clean command lists what can go) and retry. {checkpoint_of(facts)}"
    )


def supervisor_lost(facts: Facts) -> str:
    """Return the text when the shim vanished without a report."""
    return (
        f"The supervisor of stage {facts.stage} was killed before it could report how the ranks ended, so their exit "
        f"codes are unknown. Its processes were found by their marker: {processes_ended(facts)} {checkpoint_of(facts)}"
    )


def folder_gone(facts: Facts) -> str:
    """Return the text when the run's folder was removed by hand while the run went on."""
    return (
        f"The folder of the run was removed while stage {facts.stage} ran, so nobody could write down how its ranks "
        f"ended. {processes_ended(facts)}"
    )


def rebooted(facts: Facts) -> str:
    """Return the text when the machine went down under the run."""
    return (
        f"The machine was restarted while stage {facts.stage} ran; nothing of it is left, and no process of today was "
        f"touched. {checkpoint_of(facts)}"
    )


def time_limit(stage: str, seconds: float) -> str:
    """Return the text when the run took too long."""
    return (
        f"The run was stopped in stage {stage} because it reached its limit of {seconds:g} seconds "
        "(DDP_AUDIT_RUN_LIMIT_SECONDS)."
    )


def invalid_result(problem: str) -> str:
    """Return the text when every stage ended well but the result is not one."""
    return f"Every stage ended well, but result.json cannot be used: {problem}"
