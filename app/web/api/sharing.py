"""Sharing and automation: JUnit XML, a self-contained page, badges, trends, and the webhook's delivery log."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from app.db import Engine, read_session
from app.runs.requests import find_kind
from app.runs.results.reading import read_result
from app.runs.results.trends import MOST_POINTS, Trend, TrendChecks, fill_checks, trend, trend_checks
from app.runs.store import get_run, get_run_document
from app.sharing.badge import badge, newest_verdict
from app.sharing.deliveries import MOST, DeliveryDocument, DeliveryList, Status, delivery_log, redeliver
from app.sharing.junit import junit
from app.web.api.answers import Answers, answers
from app.web.api.replies import Actor, AppSettings, ReadSession
from app.web.http.head import headers_alone

router = APIRouter(tags=["sharing"])

ALONE: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""For a page with its own styles and pictures that cannot run anything."""
BEFORE: Final = "Deliveries with a lower number, with any filters: `next_before` of the previous page."
Word = Annotated[str, Query(min_length=1, max_length=64)]


def _file(success: str, *problems: int) -> Answers:
    """Return the `responses` of a route that answers with a file of type `success`."""
    return {200: {"description": "Success", "content": {success: {}}}, **answers(*problems)}


@router.get("/runs/{run_id}/junit", responses=_file("application/xml", 404, 409), response_class=Response)
def show_junit(run_id: int, session: ReadSession, settings: AppSettings) -> Response:
    """Return the checks as JUnit XML: failed checks are failures, checks that could not be judged are errors."""
    run = get_run_document(session, run_id)
    name = f'attachment; filename="run-{run_id}-junit.xml"'
    return Response(
        junit(run, read_result(settings.runs_dir, run_id).document),
        200,
        {"Content-Disposition": name},
        "application/xml",
    )


@router.get("/runs/{run_id}/page", responses=_file("text/html", 404, 409), response_class=Response)
def show_page(request: Request, run_id: int, session: ReadSession, settings: AppSettings) -> Response:
    """Return the result as one HTML file that works without this service and without a network."""
    from app.web.views.standalone import result_page, shareable_run

    run = shareable_run(session, run_id)
    headers = {
        "Content-Disposition": f'attachment; filename="run-{run_id}.html"',
        "Content-Security-Policy": ALONE,
    }
    kind = "text/html; charset=utf-8"
    if headers_alone(request):
        return StreamingResponse(iter(()), 200, headers, kind)
    return Response(result_page(session, settings.runs_dir, run), 200, headers, kind)


@router.get("/badge/{kind}.svg", responses=_file("image/svg+xml", 404), response_class=Response)
def show_badge(kind: Annotated[str, Path(max_length=64)], session: ReadSession) -> Response:
    """Return the newest verdict of a kind as an SVG badge."""
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": "sandbox; default-src 'none'"}
    return Response(badge(kind, newest_verdict(session, kind)), 200, headers, "image/svg+xml")


@router.get("/trends", responses=answers(404))
def show_trend(
    *,
    request: Request,
    settings: AppSettings,
    kind: Word,
    check: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
    preset: Annotated[str | None, Query(min_length=1, max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_POINTS)] = 200,
) -> Trend | TrendChecks:
    """Return one check over the newest runs of a kind, oldest first; without `check`, the available checks."""
    find_kind(kind)
    engine: Engine = request.app.state.engine
    fill_checks(engine, settings.runs_dir)
    with read_session(engine) as session:
        if check is None:
            return TrendChecks(kind=kind, checks=trend_checks(session, kind))
        return trend(session, kind, check, limit, preset=preset or "")


@router.get("/webhooks/deliveries", responses=answers(404))
def list_deliveries(
    session: ReadSession,
    run_id: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    status: Annotated[Status | None, Query()] = None,
    before: Annotated[int | None, Query(ge=1, lt=2**63, description=BEFORE)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 50,
) -> DeliveryList:
    """List webhook deliveries, newest first, with every attempt; never the address."""
    if run_id is not None and not delivery_log(session, run_id=run_id, limit=1).items:
        get_run(session, run_id)
    return delivery_log(session, run_id=run_id, status=status or "", before=before, limit=limit)


@router.post("/webhooks/deliveries/{delivery_id}/redeliver", status_code=202, responses=answers(403, 404))
def redeliver_one(request: Request, delivery_id: int, actor: Actor) -> DeliveryDocument:
    """Send a delivery again."""
    return redeliver(request.app.state.engine, delivery_id, actor=actor)
