"""The main check of a run, shown in lists: the kind's first headline check, or one that did not pass."""

from collections.abc import Sequence

from app.runs.derived import RunCheck
from trainer.contract.kinds import kinds


def headline(checks: Sequence[RunCheck]) -> RunCheck:
    """Return the first headline check of the kind; a check that did not pass takes precedence."""
    spec = kinds().get(checks[0].kind)
    names = list(spec.headline_checks) if spec is not None else []

    def rank(check: RunCheck) -> tuple[bool, int]:
        place = names.index(check.name) if check.name in names else len(names)
        return check.passed is True, place

    return min(checks, key=rank)
