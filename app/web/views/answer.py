"""The first screen of a run's page: the panel and checks that explain the verdict, or the run's current activity."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from app.runs.documents import Progress, Rank, RunDocument, Stage
from app.runs.results.bounds import difference, relation_of, share
from app.runs.states import State
from app.web.views.panels import PanelView
from trainer.contract.kinds import kinds
from trainer.contract.result import Relation

MOST_CHECKS: Final = 3
PICTURES: Final = frozenset({"histogram", "bars", "heat", "series", "confusion_matrix", "timeline"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Current activity of a run that has not ended, and what is next."""

    stage: str
    """Title of the current stage; empty before the first."""
    place: int
    """Number of this stage, from 1 on."""
    stages: int
    """Number of stages; 0 if unknown."""
    progress: Progress | None
    """`done`, `total` and `unit` of the current stage."""
    since: str
    """Start of the current activity."""
    phase: str
    """Activity of the stage's ranks, as text."""
    step: str
    heard: str | None
    """When a rank of the stage last reported."""
    stalled: list[int]
    """Ranks that have not reported for too long."""
    following: list[str]
    """Titles of the remaining stages."""


def lead_panel(result: Mapping[str, Any], panels: Sequence[PanelView]) -> PanelView | None:
    """Return the panel that a result names as its headline; for older results the first picture or panel."""
    named = [panel for panel in panels if panel.data["title"] == result.get("headline")]
    pictures = [panel for panel in panels if panel.type in PICTURES]
    return next(iter([*named, *pictures, *panels]), None)


def deciding_checks(checks: Sequence[Mapping[str, Any]], telling: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """Return the decisive checks: failed or unjudged ones, else the kind's headline checks and the tightest."""
    troubled = [check for check in checks if check["passed"] is not True]
    if troubled:
        # Control first: it alone makes the verdict inconclusive.
        return sorted(troubled, key=lambda check: (check["name"] != "control", check["passed"] is None))[:MOST_CHECKS]
    measured = [check for check in checks if check["measured"] is not None and check["limit"] is not None]
    tightest = sorted(measured, key=lambda check: (check["name"] not in telling, -_tightness(check)))
    return (tightest or list(checks))[:MOST_CHECKS]


def _tightness(check: Mapping[str, Any]) -> float:
    """Return how near a passing check came to its limit, 0 to 1; 0 if nearness is undefined."""
    if relation_of(check) is Relation.AT_LEAST:
        room, limit = difference(check), check["limit"]
        return float(limit / (limit + room)) if room is not None and limit + room > 0 else 0.0
    return abs(share(check) or 0.0)


def activity(run: RunDocument) -> Activity | None:
    """Return the current activity of a run; None if it has ended."""
    if State(run.state).is_final:
        return None
    stages = {stage.name: stage for stage in run.stages}
    titles = {name: stage.title or name for name, stage in stages.items()} or planned_stages(run)
    name = run.progress.stage if run.progress else ""
    current = stages.get(name)
    names = list(titles)
    place = names.index(name) + 1 if name in titles else 0
    return Activity(
        stage=titles.get(name, ""),
        place=place,
        stages=len(titles),
        progress=current.progress if current else None,
        since=_since(run, current),
        phase=_phase(run.ranks),
        step=_step(run.ranks),
        heard=max((rank.last_seen for rank in run.ranks if rank.last_seen), default=None),
        stalled=[rank.rank for rank in run.ranks if rank.stalled],
        following=[titles[name] for name in names[place:]],
    )


def planned_stages(run: RunDocument) -> dict[str, str]:
    """Return name and title of every planned stage of the run; empty for unknown kinds."""
    spec = kinds().get(run.kind)
    if spec is None:
        return {}
    try:
        return {stage.name: stage.title for stage in spec.stages(spec.params.model_validate(run.params))}
    except ValidationError:  # recorded by a version with other parameters
        return {}


def _since(run: RunDocument, current: Stage | None) -> str:
    if run.state == State.RUNNING and current and current.started_at:
        return str(current.started_at)
    moves = run.history
    return str(moves[-1].at if moves else run.created_at)


def _phase(ranks: Sequence[Rank]) -> str:
    found = Counter(rank.phase for rank in ranks if rank.phase)
    if len(found) == 1:
        return str(next(iter(found)))
    return ", ".join(f"{phase} on {count} rank{'s' if count > 1 else ''}" for phase, count in found.most_common())


def _step(ranks: Sequence[Rank]) -> str:
    steps = sorted({rank.step for rank in ranks if rank.step is not None})
    return "" if not steps else f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
