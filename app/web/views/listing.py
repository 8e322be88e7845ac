"""Data of the list of runs and its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request

from app.db import read_session
from app.runs.documents import RunList
from app.runs.ordering import ASCENDING, Order
from app.runs.results.columns import column_names, column_values
from app.runs.states import State
from app.runs.store import list_runs
from app.runs.tags import text_from_tags
from app.web.api.filters import query_of
from app.web.forms.listing import COLUMNS, USUAL_ORDER, ListQuery
from app.web.views import rendering
from trainer.contract.kinds import kinds, quick_starts
from trainer.contract.result import Verdict

PAGE_SIZE: Final = 50
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
"""Sort order of the first and second click on a column heading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One page of runs with the values of its columns."""

    page: RunList
    values: Mapping[int, Mapping[str, Any]]
    """Values of columns that are not fields of a run, by the run's number and the column."""
    names: list[str]
    """Further columns available for these runs."""


def _load(request: Request, query: ListQuery) -> Listing:
    state = request.app.state
    with read_session(state.engine) as session:
        filters, order, cursor = query.filters(), query.order(), query.cursor or None
        page = list_runs(session, filters, order=order, cursor=cursor, limit=PAGE_SIZE)
        values = column_values(session, state.settings.runs_dir, page.items, query.extra())
        return Listing(page=page, values=values, names=column_names(session, page.items))


def list_context(request: Request, query: ListQuery) -> dict[str, Any]:
    """Return the template context of the list and its rows."""
    listing = _load(request, query)
    page = listing.page
    narrowed = any(value for value in query.model_dump(exclude={"col"}).values())
    order = query.order()
    return {
        "nav": "runs",
        "page": page,
        "column_values": listing.values,
        "column_names": listing.names,
        "named_columns": {column.text: column for column in query.extra() if column.of != "main"},
        "unknown_columns": query.unknown(),
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
    """Return the link of a column heading."""
    order = query.order()
    targets = {name: turned if order is first else first for name, (first, turned) in HEADINGS.items()}
    return {name: f"?{query.address(sort=target, cursor='')}" for name, target in targets.items()}


def _sorted_column(order: Order) -> tuple[str, str]:
    """Return the sort column and its direction, as `aria-sort` values."""
    for name, orders in HEADINGS.items():
        if order in orders:
            return name, "ascending" if order in ASCENDING else "descending"
    return "", "none"
