"""`/storage`: what fills the disk, the retention policy and what belongs to nothing, each shown before it goes."""

import math
import re
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.runs.errors import Conflict, Refused, refused
from app.runs.requests import find_kind
from app.storage.orphans import listed, orphan_list, remove_orphans
from app.storage.overview import storage
from app.storage.retention import Applied, Plan, Policy, apply, plan
from app.web.views import rendering
from trainer.contract.kinds import data_sources, kinds

router = APIRouter(include_in_schema=False)
PAGE_SIZE: Final = 20
MOST_SHOWN: Final = 1000
"""Rows of a plan on the page; more are counted, and the API lists them."""
AMOUNT: Final = re.compile(r"^([0-9]+(?:\.[0-9]+)?)\s*(|[kKMGT]i?)[bB]?$")
LARGEST: Final = 2**63 - 1


class PolicyForm(BaseModel):
    """A retention policy as typed; empty fields limit nothing."""

    days: str = Field("", max_length=40)
    newest: str = Field("", max_length=40)
    most: str = Field("", max_length=40)
    kind: str = Field("", max_length=64)

    @property
    def empty(self) -> bool:
        """Whether nothing was asked for."""
        return not (self.days.strip() or self.newest.strip() or self.most.strip())

    def policy(self) -> Policy:
        """Return it as the policy. Raises Refused naming the field."""
        if self.kind:
            find_kind(self.kind)
        return Policy(
            max_age_days=_number("days", self.days),
            max_runs=_whole("newest", self.newest),
            max_bytes=amount("most", self.most),
            kind=self.kind or None,
        )


class PolicyApply(PolicyForm):
    """The policy with the plan that was looked at."""

    plan: str = Field("", max_length=64)


class StorageQuery(PolicyForm):
    """The policy and the page of runs, as the address carries them."""

    page: int = Field(1, ge=1, le=1_000_000)
    orphans: bool = False
    """Whether to look for what belongs to nothing: that walks through the folder of every run."""

    def address(self, page: int) -> str:
        """Return the query string of another page of runs under the same policy."""
        values = {**self.model_dump(), "page": page if page > 1 else "", "orphans": ""}
        return urlencode({name: value for name, value in values.items() if value})


def _number(field: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise refused(field, f"must be a number such as 90, given {text[:40]!r}")
    return value


def _whole(field: str, text: str) -> int | None:
    value = _number(field, text)
    if value is not None and (not value.is_integer() or value > LARGEST):
        raise refused(field, f"must be a whole number such as 100, given {text[:40]!r}")
    return None if value is None else int(value)


def amount(field: str, text: str) -> int | None:
    """Return bytes from text such as `500 GB`, `20GiB` or `1000000`; None when empty. Raises Refused."""
    words = text.strip()
    if not words:
        return None
    match = AMOUNT.match(words)
    if match is None:
        raise refused(field, f"must be bytes such as 20 GiB, 500 GB or 1000000, given {text[:40]!r}")
    number, unit = match.groups()
    power = ("", "K", "M", "G", "T").index(unit[:1].upper())
    value = float(number) * float((1024 if unit.endswith("i") else 1000) ** power)
    if value > LARGEST:
        raise refused(field, f"must be at most {LARGEST} bytes, given {text[:40]!r}")
    return round(value)


@router.get("/storage", name="storage_page")
def show(request: Request, query: Annotated[StorageQuery, Query()]) -> Response:
    """Show what fills the disk, and what the policy in the address would remove."""
    return _page(request, query)


@router.post("/storage/retention", name="storage_retention")
def apply_policy(request: Request, form: Annotated[PolicyApply, Form()]) -> Response:
    """Remove exactly the runs that were shown; show the new plan when it would by now remove others."""
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
    """Remove exactly what was shown as belonging to nothing; show the new list when it changed."""
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
    """Return what the policy would do, None for no policy, and what is wrong with its fields."""
    if query.empty:
        asked = query.kind or "days" in request.query_params  # the form was sent, its fields left empty
        return None, {"days": "give at least one limit"} if asked else {}
    try:
        found = plan(request.app.state.engine, request.app.state.settings, query.policy())
    except Refused as refusal:
        return None, {FIELDS.get(item.field, item.field): item.message for item in refusal.errors}
    return found, {}
