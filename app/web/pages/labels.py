"""`/runs/{id}/edit` and `/runs/{id}/label/{field}`: name, tags, notes and pin, edited where they are shown."""

from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field, ValidationError

from app.db import read_session
from app.runs.editing import edit_run, read_changes
from app.runs.errors import Refused
from app.runs.store import get_run_document
from app.runs.tags import tags_from_text
from app.web.forms.listing import ListQuery
from app.web.views import rendering
from app.web.views.listing import list_context
from app.web.views.rendering import see
from app.web.views.runpage import PageQuery, render

router = APIRouter(include_in_schema=False)


class Label(StrEnum):
    """A label of a run with its own place on the page."""

    NAME = "name"
    TAGS = "tags"
    NOTES = "notes"
    PINNED = "pinned"


class EditForm(BaseModel):
    """Labels as a form sends them; absent ones are not changed."""

    name: str | None = None
    tags: str | None = None
    notes: str | None = None
    pinned: str | None = None
    """Empty removes the pin, anything else sets it."""
    shown: Label | None = None
    """The label to re-render on the run page."""
    runs: str | None = Field(None, max_length=40_000)
    """Query of the list that contains the form; the answer redirects there."""

    def changes(self) -> dict[str, Any]:
        """Return the changes of the form."""
        given: dict[str, Any] = {
            name: value for name, value in (("name", self.name), ("notes", self.notes)) if value is not None
        }
        if self.tags is not None:
            given["tags"] = tags_from_text(self.tags)
        if self.pinned is not None:
            given["pinned"] = bool(self.pinned)
        return given


async def edit_form(request: Request) -> EditForm:
    """Return the submitted form. The framework's own parsing treats an empty field as absent, which is different here.

    Raises RequestValidationError.
    """
    sent = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    try:
        return EditForm.model_validate(sent)
    except ValidationError as error:
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in error.errors()]) from None


@router.post("/runs/{run_id:int}/edit", name="run_edit")
def edit(request: Request, run_id: int, form: Annotated[EditForm, Depends(edit_form)]) -> Response:
    """Change labels of a run, then redirect or re-render the edited place."""
    try:
        edit_run(request.app.state.engine, run_id, read_changes(form.changes()), actor=rendering.actor(request))
    except Refused as refusal:
        if form.shown is None:
            raise
        typed = getattr(form, form.shown)
        if rendering.by_htmx(request):
            return _place(request, run_id, form.shown, open_=True, typed=typed, problem=refusal.detail, status=422)
        query = PageQuery(edit=form.shown.value)
        return render(request, run_id, query, status=422, typed=typed, problem=refusal.detail)
    if not rendering.by_htmx(request):
        return see(request, "run_page", run_id=run_id) if form.runs is None else back_to_list(request, form.runs)
    if form.runs is not None:
        return rendering.page(request, "partials/_run_rows.html", **list_context(request, ListQuery.read(form.runs)))
    return _place(request, run_id, form.shown or Label.NAME)


@router.get("/runs/{run_id:int}/label/{label}", name="run_label")
def show(request: Request, run_id: int, label: Label, edit: Annotated[bool, Query()] = False) -> Response:
    """Return the HTML of one label: its text, or the field to change it."""
    return _place(request, run_id, label, open_=edit and rendering.role(request) == rendering.OPERATOR)


def _place(
    request: Request,
    run_id: int,
    label: Label,
    *,
    open_: bool = False,
    typed: str | None = None,
    problem: str = "",
    status: int = 200,
) -> Response:
    with read_session(request.app.state.engine) as session:
        run = get_run_document(session, run_id)
    context = {"run": run, "label": label.value, "open": open_, "typed": typed, "problem": problem}
    return rendering.page(request, "partials/_run_label.html", status, **context)


def back_to_list(request: Request, query: str) -> RedirectResponse:
    """Answer a form: redirect to the list with its query."""
    address = ListQuery.read(query).address()
    target = rendering.path(request, "runs_page") + (f"?{address}" if address else "")
    return RedirectResponse(target, status_code=303)
