"""`/runs/bulk`: one action on several selected runs, and the outcome of each."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.runs.editing import Changes, edit_run, read_changes
from app.runs.errors import ServiceError, refused
from app.runs.removal import delete_run
from app.runs.tags import tags_from_text, text_from_tags
from app.web.api.replies import service_of
from app.web.forms.listing import ListQuery
from app.web.views import rendering

router = APIRouter(include_in_schema=False)
MOST_RUNS: Final = 500
ACTIONS: Final = {
    "cancel": "Cancel several runs",
    "delete": "Delete several runs",
    "tag": "Add tags to several runs",
    "untag": "Remove tags from several runs",
    "pin": "Pin several runs",
    "unpin": "Unpin several runs",
}
UNCHANGED: Final = "nothing changed"


class BulkForm(BaseModel):
    """Fields of the form around the list."""

    action: str = ""
    run: list[int] = Field(default_factory=list)
    tags: str = ""
    runs: str = Field("", max_length=40_000)
    """Query of the list, for the link back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one run of a bulk request."""

    run_id: int
    text: str
    gone: bool = False
    """Whether its page no longer exists."""


@router.post("/runs/bulk", name="runs_bulk")
def bulk(request: Request, form: Annotated[BulkForm, Form()]) -> Response:
    """Apply one action to the selected runs and show the outcome of each."""
    wanted = _changes(form)
    outcomes = [_apply(request, form.action, wanted, run_id) for run_id in dict.fromkeys(form.run[:MOST_RUNS])]
    address = ListQuery.read(form.runs).address()
    title, left = ACTIONS[form.action], max(0, len(form.run) - MOST_RUNS)
    context: dict[str, Any] = {
        "title": title,
        "outcomes": outcomes,
        "left": left,
        "address": f"?{address}" if address else "",
    }
    return rendering.page(request, "pages/runs/bulk.html", nav="runs", **context)


def _changes(form: BulkForm) -> Changes | None:
    """Return the labels that an action changes, None for other actions. Raises Refused; nothing is done then."""
    match form.action:
        case "pin" | "unpin":
            return read_changes({"pinned": form.action == "pin"})
        case "tag" | "untag":
            tags = tags_from_text(form.tags)
            if not tags:
                raise refused("tags", "enter at least one tag, separate several by commas; nothing was done")
            return read_changes({"add_tags" if form.action == "tag" else "remove_tags": tags})
        case "cancel" | "delete":
            return None
    raise refused("action", f"must be one of {', '.join(ACTIONS)}, given {form.action[:40]!r}; nothing was done")


def _apply(request: Request, action: str, wanted: Changes | None, run_id: int) -> Outcome:
    state, by = request.app.state, rendering.actor(request)
    try:
        if wanted is not None:
            changed = edit_run(state.engine, run_id, wanted, actor=by)
            return Outcome(run_id=run_id, text=_done(action, wanted) if changed else UNCHANGED)
        if action == "delete":
            delete_run(state.engine, state.settings, run_id, actor=by)
            return Outcome(run_id=run_id, text="deleted", gone=True)
        service_of(request).cancel(run_id, actor=by)
        return Outcome(run_id=run_id, text="cancel requested")
    except ServiceError as refusal:
        return Outcome(run_id=run_id, text=refusal.detail, gone=refusal.status == 404)


def _done(action: str, wanted: Changes) -> str:
    tags = text_from_tags([*wanted.add_tags, *wanted.remove_tags])
    return {"tag": f"tagged {tags}", "untag": f"tags removed: {tags}"}.get(action, f"{action}ned")
