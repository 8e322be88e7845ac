"""`/` and `/runs`: the list of runs, its filters in the address, and what its buttons do to several at once."""

from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.db import read_session
from app.runs.errors import ServiceError
from app.runs.ordering import Order
from app.runs.removal import delete_run
from app.runs.states import FINAL, State
from app.runs.store import RunFilters, RunPage, list_runs
from app.web.pages import rendering
from app.web.pages.run import see, service
from trainer.contract.kinds import kinds
from trainer.contract.result import Verdict

router = APIRouter(include_in_schema=False)
PAGE_SIZE = 50
COLUMNS: Final = {
    "verdict": "Verdict",
    "state": "State",
    "kind": "Kind",
    "backend": "Backend",
    "device": "Device",
    "created": "Created",
    "finished": "Finished",
    "took": "Took",
    "notes": "Notes",
}
USUAL: Final = ("verdict", "state", "kind", "backend", "created", "took")
ORDERS: Final = {"newest": "newest first", "oldest": "oldest first", "finished": "last finished first"}


class ListQuery(BaseModel):
    """Filters of the list, as the address carries them; empty means all."""

    kind: str = Field("", max_length=64)
    state: str = Field("", max_length=32)
    verdict: str = Field("", max_length=32)
    tag: str = Field("", max_length=64)
    q: str = Field("", max_length=200)
    sort: str = Field("", max_length=16)
    col: list[str] = Field(default_factory=list, max_length=2 * len(COLUMNS))
    cursor: str = Field("", max_length=200)

    def filters(self) -> RunFilters:
        """Return them as the store takes them."""
        several = {name: (getattr(self, name),) for name in ("kind", "state", "verdict", "tag") if getattr(self, name)}
        return RunFilters(**several, q=self.q)

    def order(self) -> Order:
        """Return what the list is sorted by; what is no order means newest first."""
        return Order(self.sort) if self.sort in set(Order) else Order.NEWEST

    def columns(self) -> list[str]:
        """Return the columns to show, in their own order; what is no column is left out."""
        return [name for name in COLUMNS if name in self.col] or list(USUAL)

    def address(self, **changes: str) -> str:
        """Return the query string with `changes`, without empty values and without the usual columns."""
        values = {**self.model_dump(), "col": [] if self.columns() == list(USUAL) else self.columns(), **changes}
        return urlencode({name: value for name, value in values.items() if value}, doseq=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one run of a bulk request."""

    run_id: int
    text: str


def _load(request: Request, query: ListQuery) -> RunPage:
    with read_session(request.app.state.engine) as session:
        return list_runs(session, query.filters(), order=query.order(), cursor=query.cursor or None, limit=PAGE_SIZE)


def _context(request: Request, query: ListQuery) -> dict[str, Any]:
    page = _load(request, query)
    narrowed = any(value for name, value in query.model_dump(exclude={"col"}).items())
    return {
        "nav": "runs",
        "page": page,
        "query": query,
        "narrowed": narrowed,
        "first_time": not page.items and not narrowed,
        "rows_url": f"{rendering.path(request, 'run_rows')}?{query.address()}",
        "older": f"?{query.address(cursor=page.next_cursor)}" if page.next_cursor else "",
        "columns": query.columns(),
        "column_titles": COLUMNS,
        "order": query.order(),
        "orders": ORDERS,
        "sort_urls": _sort_urls(query),
        "newest": f"?{query.address(cursor='')}" if query.cursor else "",
        "kinds": kinds(),
        "states": list(State),
        "verdicts": list(Verdict),
        "final_states": FINAL,
    }


def _sort_urls(query: ListQuery) -> dict[str, str]:
    """Return where the heading of a column leads: created turns round, finished brings the last to end first."""
    turned = Order.OLDEST if query.order() is Order.NEWEST else Order.NEWEST
    targets = {"created": turned, "finished": Order.FINISHED}
    return {name: f"?{query.address(sort=order, cursor='')}" for name, order in targets.items()}


@router.get("/", name="index")
def index(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Show the newest runs; when there are none, say what the product is for."""
    return rendering.page(request, "pages/runs/list.html", **_context(request, query))


@router.get("/runs", name="runs_page")
def runs(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Show one page of runs, narrowed by the address."""
    return rendering.page(request, "pages/runs/list.html", **_context(request, query))


@router.get("/runs/rows", name="run_rows")
def rows(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Return the rows alone: what the list fetches again and again while somebody looks at it."""
    return rendering.page(request, "partials/_run_rows.html", **_context(request, query))


@router.post("/runs/bulk", name="runs_bulk")
def bulk(
    request: Request, action: Annotated[str, Form()] = "", run: Annotated[list[int] | None, Form()] = None
) -> Response:
    """Cancel or delete the ticked runs and tell for each what happened."""
    outcomes = [Outcome(run_id=run_id, text=_apply(request, action, run_id)) for run_id in (run or [])[:500]]
    return rendering.page(request, "pages/runs/bulk.html", nav="runs", action=action, outcomes=outcomes)


def _apply(request: Request, action: str, run_id: int) -> str:
    by = rendering.actor(request)
    try:
        match action:
            case "cancel":
                service(request).cancel(run_id, actor=by)
                return "cancel requested"
            case "delete":
                delete_run(request.app.state.engine, request.app.state.settings, run_id, actor=by)
                return "deleted"
    except ServiceError as refusal:
        return refusal.detail
    return f"nothing done: the action must be cancel or delete, given {action[:40]!r}"


@router.post("/quick", name="quick_audit")
def quick(request: Request) -> Response:
    """Start the quick audit with one click."""
    from app.runs.requests import RunRequest

    request_ = RunRequest(kind="token-parity", preset="quick", name="")
    run_id = service(request).submit(request_, actor=rendering.actor(request))
    return see(request, "run_page", run_id=run_id)
