"""Findings, and how they become checks: what was found, how grave it is, and which of it the user accepts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.contract.events import encodable
from trainer.contract.result import Check, Relation
from trainer.kinds.trace.judge.catalogue import CHECKS, SEVERITIES
from trainer.kinds.trace.judge.reading import RankTrace

MOST_PLACES = 8
MOST_DETAIL = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be, or worth knowing."""

    name: str
    severity: str
    """wrong, waste or note."""
    check: str
    detail: str
    """With the numbers."""
    windows: int = 0
    """How many windows it concerns; 0 where it is not about windows."""
    places: Sequence[tuple[str, int]] = ()
    """File and line in the user's source."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    suggestion: str = ""
    """The smallest change that mends it."""

    def document(self, allowed: frozenset[str]) -> dict[str, Any]:
        """Return the finding as the summary has it."""
        accepted = self.name in allowed
        detail = self.detail[:MOST_DETAIL]
        return {
            "name": self.name,
            "severity": self.severity,
            "check": self.check,
            "detail": f"Allowed: {detail}" if accepted else detail,
            "windows": self.windows,
            "places": [{"file": file, "line": line} for file, line in self.places[:MOST_PLACES]],
            "measured": encodable(dict(self.measured)),
            "suggestion": self.suggestion,
            "allowed": accepted,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which findings fail a check."""

    fail_on: str = "wrong"
    allow: frozenset[str] = frozenset()

    def fails(self, finding: Finding) -> bool:
        """Return whether a finding fails its check."""
        grave = SEVERITIES.index(finding.severity) <= SEVERITIES.index(self.fail_on)
        return grave and finding.name not in self.allow


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What one check has found."""

    name: str
    findings: Sequence[Finding] = ()
    seen: bool = True
    """Whether there was enough to look at; without it nothing passes."""
    detail: str = ""
    """What was looked at, or what was not there to look at."""
    hidden: Sequence[str] = ()
    """Sentences about what this check could not see, for the coverage."""
    absent: bool = False
    """The check does not apply to this script and is left out."""

    @classmethod
    def left_out(cls, name: str, *why: str) -> "Judged":
        """Return a check that does not apply, with what that leaves unseen."""
        return cls(name=name, seen=False, hidden=why, absent=True)

    def check(self, policy: Policy) -> Check:
        """Return the check under a policy."""
        failing = [finding for finding in self.findings if policy.fails(finding)]
        passed: bool | None = False if failing else (True if self.seen else None)
        judged = failing or self.seen
        return Check(
            name=self.name,
            title=CHECKS[self.name][0],
            passed=passed,
            measured=len(failing) if judged else None,
            limit=0 if judged else None,
            relation=Relation.EQUAL,
            unit="finding" if len(failing) == 1 and judged else "findings",
            detail=self._text(policy, failing)[:MOST_DETAIL],
        )

    def _text(self, policy: Policy, failing: Sequence[Finding]) -> str:
        texts = [f"{item.name}: {item.detail}" for item in failing]
        texts += [
            f"{'allowed' if item.name in policy.allow else item.severity}: {item.name}: {item.detail}"
            for item in self.findings
            if item not in failing
        ]
        return " ".join(texts) if texts and self.seen else " ".join([*texts, self.detail]).strip()


def place_of(rank: RankTrace | None, number: int | None) -> tuple[str, int] | None:
    """Return file and line of a site of a rank."""
    if rank is None or number is None:
        return None
    site = rank.sites.get(number)
    return site.place if site else None


def places(rank: RankTrace | None, numbers: Sequence[int | None]) -> list[tuple[str, int]]:
    """Return the places of sites, each once, in order."""
    if rank is None:
        return []
    sites = rank.sites
    found = [sites[number].place for number in dict.fromkeys(numbers) if number is not None and number in sites]
    return list(dict.fromkeys(item for item in found if item is not None))


def listed(items: Sequence[Any], most: int = 6) -> str:
    """Return items as text, shortened."""
    shown = ", ".join(str(item) for item in items[:most])
    return f"{shown} and {len(items) - most:,} more" if len(items) > most else shown


def several(count: int, noun: str) -> str:
    """Return a number with its noun: 1 window, 2 windows."""
    ending = noun if count == 1 else f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun}s"
    return f"{count:,} {ending}"
