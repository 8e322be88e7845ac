"""`/trends`: one check over the runs of a kind, so that a regression shows before it becomes a failure."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from app.db import read_session
from app.runs.trends import fill_checks, trend, trend_checks
from app.web.pages import rendering
from app.web.pages.panels import panel_views
from trainer.contract.kinds import kinds

router = APIRouter(include_in_schema=False)
FIRST: Final = {"token-parity": "gradient_parity"}
"""The check shown first, where the alphabet would choose a lesser one."""


@router.get("/trends", name="trends_page")
def show(
    request: Request,
    kind: Annotated[str, Query(max_length=64)] = "token-parity",
    check: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    """Show measured values and the share of the limit used, run by run."""
    engine = request.app.state.engine
    fill_checks(engine, request.app.state.settings.runs_dir)
    with read_session(engine) as session:
        known = trend_checks(session, kind)
        names = [item["check"] for item in known]
        usual = FIRST.get(kind, "")
        chosen = check or (usual if usual in names else next(iter(names), ""))
        found = trend(session, kind, chosen) if chosen else None
    return rendering.page(
        request,
        "pages/trends/show.html",
        nav="trends",
        kinds=list(kinds()),
        kind=kind,
        checks=known,
        check=chosen,
        trend=found,
        panels=panel_views(_panels(found), "trend") if found else [],
    )


def _panels(found: dict[str, Any]) -> list[dict[str, Any]]:
    items = found["items"]
    measured = [
        {"name": "measured", "y": [item["measured"] for item in items]},
        {"name": "limit", "y": [item["limit"] for item in items]},
    ]
    share = [{"name": "measured / limit", "y": [item["margin"] for item in items]}]
    common = {"type": "series", "note": "", "x": [item["run_id"] for item in items], "x_label": "run", "y_label": ""}
    return [
        {**common, "title": f"{found['title']}: measured and limit", "y_label": found["unit"], "lines": measured},
        {**common, "title": f"{found['title']}: share of the limit", "lines": share},
    ]
