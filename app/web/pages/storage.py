"""`/storage`: disk usage, the retention policy and orphans; every removal is shown first."""

import math
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from app.runs.errors import Conflict, Refused
from app.storage.orphans import listed, orphan_list, remove_orphans
from app.storage.overview import storage
from app.storage.retention import Applied, Plan, apply, plan
from app.web.forms.storage import PolicyApply, StorageQuery
from app.web.views import rendering
from trainer.contract.kinds import data_sources, kinds

router = APIRouter(include_in_schema=False)
PAGE_SIZE: Final = 20
MOST_SHOWN: Final = 1000
"""Maximum number of a plan's rows on the page; more are counted, and the API lists them."""


@router.get("/storage", name="storage_page")
def show(request: Request, query: Annotated[StorageQuery, Query()]) -> Response:
    """Show the disk usage, and what the policy in the URL would remove."""
    return _page(request, query)


@router.post("/storage/retention", name="storage_retention")
def apply_policy(request: Request, form: Annotated[PolicyApply, Form()]) -> Response:
    """Remove exactly the runs that were shown; show the new plan if it has changed."""
    state = request.app.state
    try:
        done = apply(state.engine, state.settings, form.policy(), seen=form.plan, actor=rendering.actor(request))
    except Conflict as conflict:
        return _page(request, StorageQuery(**form.model_dump(exclude={"plan"})), problem=conflict.detail)
    outcome: dict[str, Any] = {"what": "run", "removed": [f"run {run_id}" for run_id in done.removed], **_counted(done)}
    return rendering.page(request, "pages/storage/done.html", nav="storage", **outcome)


def _counted(done: Applied) -> dict[str, Any]:
    return {"bytes": done.bytes, "skipped": [f"run {item.id}: {item.why}" for item in done.skipped]}


@router.post("/storage/orphans", name="storage_orphans")
def apply_orphans(request: Request, plan: Annotated[str, Form(max_length=64)] = "") -> Response:
    """Remove exactly the orphans that were shown; show the new list if it has changed."""
    state = request.app.state
    try:
        removed = remove_orphans(state.engine, state.settings, seen=plan, actor=rendering.actor(request))
    except Conflict as conflict:
        return _page(request, StorageQuery(orphans=True), problem=conflict.detail)
    done = listed(state.settings, removed)
    names = [item.path for item in done.items]
    outcome: dict[str, Any] = {"what": "orphan", "removed": names, "bytes": done.bytes, "skipped": []}
    return rendering.page(request, "pages/storage/done.html", nav="storage", **outcome)


def _page(request: Request, query: StorageQuery, problem: str = "") -> Response:
    state = request.app.state
    held = storage(state.engine, state.settings)
    found, errors = _plan(request, query)
    pages = max(1, math.ceil(len(held.items) / PAGE_SIZE))
    page = min(query.page, pages)
    begin = (page - 1) * PAGE_SIZE
    status = 409 if problem else 422 if errors else 200
    return rendering.page(
        request,
        "pages/storage/show.html",
        status,
        nav="storage",
        held=held,
        rows=held.items[begin : begin + PAGE_SIZE],
        first=begin + 1,
        newer=f"?{query.address(page - 1)}#runs" if page > 1 else "",
        older=f"?{query.address(page + 1)}#runs" if page < pages else "",
        query=query,
        kinds=list(kinds()),
        fetched=[source for _, source in data_sources() if source.fetched],
        plan=found,
        errors=errors,
        problem=problem,
        most_shown=MOST_SHOWN,
        orphans=orphan_list(state.engine, state.settings) if query.orphans else None,
    )


FIELDS: Final = {"max_age_days": "days", "max_runs": "newest", "max_bytes": "most"}
"""Names of the policy's limits -> names of the form's fields."""


def _plan(request: Request, query: StorageQuery) -> tuple[Plan | None, dict[str, str]]:
    """Return what the policy would do, None for no policy, and the errors of its fields."""
    if query.empty:
        asked = query.kind or "days" in request.query_params  # the form was sent with empty fields
        return None, {"days": "give at least one limit"} if asked else {}
    try:
        found = plan(request.app.state.engine, request.app.state.settings, query.policy())
    except Refused as refusal:
        return None, {FIELDS.get(item.field, item.field): item.message for item in refusal.errors}
    return found, {}
