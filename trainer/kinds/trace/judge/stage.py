"""Stage `judge`: read what the ranks of the traced command wrote, judge it, write `result.json`."""

import json

from trainer.common.context import StageContext
from trainer.common.process import announce
from trainer.contract.paths import AttemptPaths
from trainer.kinds.trace.judge.judging import judge


def run(context: StageContext) -> None:
    """Judge the newest attempt of the traced command; see docs/trace.md."""
    announce(context.telemetry)
    context.telemetry.phase("judge", 0)
    attempts = context.paths.stage("trace").glob("attempt_*")
    numbers = [int(path.name.removeprefix("attempt_")) for path in attempts if path.name[8:].isdigit()]
    attempt = context.paths.attempt("trace", max(numbers, default=1))
    result = judge(attempt.root, context.params, _exit_code(attempt))
    result.save(context.paths.result)
    context.telemetry.message(f"verdict {result.verdict}")
    context.telemetry.progress(len(result.checks), len(result.checks), "checks")


def _exit_code(attempt: AttemptPaths) -> int | None:
    """Return the exit code of the command, None where it is not known, as of what was brought from elsewhere."""
    try:
        code = json.loads(attempt.exit.read_text())["main"]["exit_code"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, int) else None
