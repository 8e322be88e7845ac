"""Filters of a list of runs as query parameters, the same wherever runs are listed."""

from dataclasses import asdict
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Query

from app.runs.ordering import Order
from app.runs.states import State
from app.runs.store import RunFilters
from trainer.contract.result import Verdict

Words = Annotated[list[str] | None, Query(max_length=20)]


def run_filters(
    *,
    state: Annotated[list[State] | None, Query()] = None,
    kind: Words = None,
    verdict: Annotated[list[Verdict] | None, Query()] = None,
    tag: Words = None,
    pinned: bool | None = None,
    q: Annotated[str, Query(max_length=200)] = "",
) -> RunFilters:
    """Return the filters; a repeated parameter means any of its values, for tags all of them."""
    tags = [each.strip() for each in tag or ()]  # as they are stored
    return RunFilters(state=state or (), kind=kind or (), verdict=verdict or (), tag=tags, pinned=pinned, q=q)


Filters = Annotated[RunFilters, Depends(run_filters)]


def query_of(filters: RunFilters, order: Order) -> str:
    """Return the query string for the same runs in the same order; it ends in `&` so that more may follow."""
    given = {name: value for name, value in asdict(filters).items() if value not in (None, "", (), [])}
    if filters.pinned is not None:
        given["pinned"] = str(filters.pinned).lower()
    return urlencode({**given, "sort": order.value}, doseq=True) + "&"
