"""`/` and `/runs`: the list of runs, with its filters, order and columns in the address."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, ValidationError

from app.db import read_session
from app.runs.documents import RunList
from app.runs.ordering import ASCENDING, Order
from app.runs.results.headline import headline_checks
from app.runs.states import State
from app.runs.store import RunFilters, list_runs
from app.runs.tags import tags_from_text, text_from_tags
from app.web.api.filters import query_of
from app.web.pages.run import see, service
from app.web.views import rendering
from trainer.contract.kinds import DEFAULT_PRESET, default_kind, kinds, quick_starts
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
    "check": "Main check",
    "notes": "Notes",
}
USUAL: Final = ("verdict", "state", "kind", "backend", "created", "took")
USUAL_ORDER: Final = Order.PINNED
ORDERS: Final = {
    Order.PINNED: "pinned first",
    Order.NEWEST: "newest first",
    Order.OLDEST: "oldest first",
    Order.FINISHED: "last finished first",
    Order.LONGEST: "longest first",
    Order.SHORTEST: "shortest first",
}
HEADINGS: Final = {
    "created": (Order.NEWEST, Order.OLDEST),
    "finished": (Order.FINISHED, Order.FINISHED),
    "took": (Order.LONGEST, Order.SHORTEST),
}
"""What a click on the heading of a column sorts by, and what another click turns it to."""
Words = Annotated[list[Annotated[str, Field(max_length=64)]], Field(default_factory=list, max_length=20)]


class ListQuery(BaseModel):
    """Filters of the list, as the address carries them; empty means all."""

    kind: Words
    state: Words
    verdict: Words
    tag: list[Annotated[str, Field(max_length=1500)]] = Field(default_factory=list, max_length=20)
    """Each one or several tags, as `app.runs.tags` reads them."""
    pinned: str = Field("", max_length=8)
    q: str = Field("", max_length=200)
    sort: str = Field("", max_length=16)
    col: list[str] = Field(default_factory=list, max_length=2 * len(COLUMNS))
    cursor: str = Field("", max_length=200)

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the query of an address from a form's field; what is none becomes the list without filters."""
        try:
            given = parse_qs(text, max_num_fields=200)
            several = {name: values for name, values in given.items() if name in SEVERAL}
            return cls.model_validate({name: values[-1] for name, values in given.items()} | several)
        except (ValueError, ValidationError):
            return cls.model_validate({})

    def tags(self) -> list[str]:
        """Return the tags a run must carry."""
        return list(dict.fromkeys(tag for text in self.tag for tag in tags_from_text(text)))

    def filters(self) -> RunFilters:
        """Return them as the store takes them."""
        return RunFilters(
            state=[word for word in self.state if word],
            kind=[word for word in self.kind if word],
            verdict=[word for word in self.verdict if word],
            tag=self.tags(),
            pinned={"1": True, "0": False}.get(self.pinned),
            q=self.q,
        )

    def order(self) -> Order:
        """Return what the list is sorted by; what is no order means pinned ones first, then the newest."""
        return Order(self.sort) if self.sort in set(Order) else USUAL_ORDER

    def columns(self) -> list[str]:
        """Return the columns to show, in their own order; what is no column is left out."""
        return [name for name in COLUMNS if name in self.col] or list(USUAL)

    def address(self, **changes: str | list[str]) -> str:
        """Return the query string with `changes`, without empty values and without what is usual."""
        values: dict[str, Any] = {
            **self.model_dump(),
            "tag": [text_from_tags([tag]) for tag in self.tags()],
            "col": [] if self.columns() == list(USUAL) else self.columns(),
            "sort": "" if self.order() is USUAL_ORDER else self.order().value,
            **changes,
        }
        kept = {name: [item for item in _listed(value) if item] for name, value in values.items()}
        return urlencode({name: items for name, items in kept.items() if items}, doseq=True)

    def with_tag(self, tag: str) -> str:
        """Return the query string of the list narrowed to one more tag, from its beginning."""
        tags = list(dict.fromkeys([*self.tags(), tag]))
        return self.address(tag=[text_from_tags([item]) for item in tags], cursor="")


SEVERAL: Final = ("kind", "state", "verdict", "tag", "col")


def _listed(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


def _load(request: Request, query: ListQuery) -> tuple[RunList, dict[int, dict[str, Any]]]:
    with read_session(request.app.state.engine) as session:
        filters, order, cursor = query.filters(), query.order(), query.cursor or None
        page = list_runs(session, filters, order=order, cursor=cursor, limit=PAGE_SIZE)
        checks = headline_checks(session, page.items) if "check" in query.columns() else {}
        return page, checks


def list_context(request: Request, query: ListQuery) -> dict[str, Any]:
    """Return what the list and its rows are rendered from."""
    page, checks = _load(request, query)
    narrowed = any(value for value in query.model_dump(exclude={"col"}).values())
    order = query.order()
    return {
        "nav": "runs",
        "page": page,
        "main_checks": checks,
        "query": query,
        "tag_text": text_from_tags(query.tags()),
        "narrowed": narrowed,
        "first_time": not page.items and not narrowed,
        "quick_starts": quick_starts(),
        "below": rendering.path(request, "runs_page"),
        "tag_urls": {tag: query.with_tag(tag) for tag in {tag for run in page.items for tag in run.tags}},
        "rows_url": f"{rendering.path(request, 'run_rows')}?{query.address()}",
        "older": f"?{query.address(cursor=page.next_cursor)}" if page.next_cursor else "",
        "columns": query.columns(),
        "column_titles": COLUMNS,
        "order": order,
        "orders": ORDERS,
        "usual_order": USUAL_ORDER,
        "sort_urls": _sort_urls(query),
        "sorted_column": _sorted_column(order),
        "newest": f"?{query.address(cursor='')}" if query.cursor else "",
        "export_query": query_of(query.filters(), order),
        "picks": [
            ("kind", "Kind", list(kinds()), query.kind),
            ("state", "State", [state.value for state in State], query.state),
            ("verdict", "Verdict", [verdict.value for verdict in Verdict], query.verdict),
        ],
    }


def _sort_urls(query: ListQuery) -> Mapping[str, str]:
    """Return where the heading of a column leads."""
    order = query.order()
    targets = {name: turned if order is first else first for name, (first, turned) in HEADINGS.items()}
    return {name: f"?{query.address(sort=target, cursor='')}" for name, target in targets.items()}


def _sorted_column(order: Order) -> tuple[str, str]:
    """Return the column an order goes by and its direction, in the words of `aria-sort`."""
    for name, orders in HEADINGS.items():
        if order in orders:
            return name, "ascending" if order in ASCENDING else "descending"
    return "", "none"


@router.get("/", name="index")
def index(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Show the list; when there is no run at all, say what the product is for."""
    return rendering.page(request, "pages/runs/list.html", **list_context(request, query))


@router.get("/runs", name="runs_page")
def runs(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Show one page of runs, narrowed by the address."""
    return rendering.page(request, "pages/runs/list.html", **list_context(request, query))


@router.get("/runs/rows", name="run_rows")
def rows(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Return the rows alone: what the list fetches again and again while somebody looks at it."""
    return rendering.page(request, "partials/_run_rows.html", **list_context(request, query))


@router.post("/quick", name="quick_audit")
def quick(request: Request, kind: Annotated[str, Form(max_length=64)] = "") -> Response:
    """Start the quick audit with one click."""
    from app.runs.requests import RunRequest

    wanted = RunRequest(kind=kind or default_kind().name, preset=DEFAULT_PRESET)
    run_id = service(request).submit(wanted, actor=rendering.actor(request))
    return see(request, "run_page", run_id=run_id)
