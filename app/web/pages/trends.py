"""`/trends`: one check over the runs of a kind, so that a regression is visible before it becomes a failure."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.db import read_session
from app.runs.requests import find_kind
from app.runs.results.bounds import DISTANCES, relation_of
from app.runs.results.trends import MOST_POINTS, fill_checks, trend, trend_checks
from app.web.charts.trend import reading, trend_chart
from app.web.views import rendering
from trainer.contract.kinds import default_kind, kinds

router = APIRouter(include_in_schema=False)
COUNTS: Final = (50, 200, MOST_POINTS)


class TrendQuery(BaseModel):
    """Selected trend in the URL."""

    kind: str = Field(default_factory=lambda: default_kind().name, max_length=64)
    check: str = Field("", max_length=128)
    preset: str = Field("", max_length=64)
    last: int = Field(COUNTS[0], ge=1, le=MOST_POINTS)


@router.get("/trends", name="trends_page")
def show(request: Request, query: Annotated[TrendQuery, Query()]) -> Response:
    """Show measured values against their limit, run by run."""
    engine = request.app.state.engine
    spec = find_kind(query.kind)
    fill_checks(engine, request.app.state.settings.runs_dir)
    with read_session(engine) as session:
        known = trend_checks(session, query.kind, preset=query.preset)
        names = [item.check for item in known]
        usual = spec.first_trend
        # A check of the previous kind is not an error: the reader has just selected another kind.
        chosen = query.check if query.check in names else usual if usual in names else next(iter(names), "")
        found = trend(session, query.kind, chosen, query.last, preset=query.preset) if chosen else None
    items = found.items if found else []
    return rendering.page(
        request,
        "pages/trends/show.html",
        nav="trends",
        query=query,
        kinds=list(kinds()),
        presets=list(spec.presets),
        counts=COUNTS,
        checks=known,
        check=chosen,
        trend=found,
        relation=relation_of(found or {}),
        distances=DISTANCES,
        chart=trend_chart(items),
        reading=reading(items) if items else None,
        badge_markdown=_badge(request, query.kind),
    )


def _badge(request: Request, kind: str) -> str:
    """Return the Markdown line of a kind's badge, with the service address used by this reader."""
    here = f"{request.url.scheme}://{request.url.netloc}"
    picture = f"{here}{rendering.api(request, f'/badge/{kind}.svg')}"
    return f"[![{kind}]({picture})]({here}{rendering.path(request, 'trends_page')}?kind={kind})"
