"""Storage: disk usage, the retention policy and orphans; removals are planned first."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from app.runs.requests import find_kind
from app.storage.orphans import OrphanList, OrphansRemoved, listed, orphan_list, remove_orphans
from app.storage.overview import StorageDocument, storage
from app.storage.retention import MOST_DAYS, Applied, Plan, Policy, apply, plan
from app.web.api.answers import answers
from app.web.api.replies import Actor, AppSettings, OneOfFew
from app.web.http.head import headers_alone, json_headers

router = APIRouter(tags=["keeping"])

LARGEST = 2**63 - 1


class PolicyQuery(BaseModel):
    """A retention policy; at least one limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_age_days: float | None = Field(None, ge=0, le=MOST_DAYS, allow_inf_nan=False)
    max_runs: int | None = Field(None, ge=0, le=LARGEST)
    max_bytes: int | None = Field(None, ge=0, le=LARGEST)
    kind: str | None = Field(None, max_length=64)

    def policy(self) -> Policy:
        """Return it as the policy. Raises Refused."""
        if self.kind is not None:
            find_kind(self.kind)
        return Policy(max_age_days=self.max_age_days, max_runs=self.max_runs, max_bytes=self.max_bytes, kind=self.kind)


class PolicyApply(PolicyQuery):
    """A policy to be applied, with the plan that was shown."""

    plan: str = Field(min_length=1, max_length=64, description="`plan` of `GET /retention` with the same limits.")


@router.get("/usage", response_model=StorageDocument, dependencies=[OneOfFew], responses=answers(429))
def show_usage(request: Request, settings: AppSettings, refresh: bool = False) -> Any:
    """Return the size of every run's folder, largest first, of the database and of data sets, and the free disk.

    `refresh` measures ended runs again.
    """
    return json_headers() if headers_alone(request) else storage(request.app.state.engine, settings, refresh=refresh)


@router.get("/retention", responses=answers())
def show_plan(request: Request, settings: AppSettings, query: Annotated[PolicyQuery, Query()]) -> Plan:
    """Return what a policy would remove; removes nothing. Pinned runs and runs that have not ended are always kept."""
    return plan(request.app.state.engine, settings, query.policy())


@router.post("/retention", responses=answers(403, 409))
def apply_plan(request: Request, settings: AppSettings, body: PolicyApply, actor: Actor) -> Applied:
    """Remove the runs of the given plan; 409 if the policy would remove different runs by now."""
    return apply(request.app.state.engine, settings, body.policy(), seen=body.plan, actor=actor)


class OrphansRemove(BaseModel):
    """The list that was shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plan: str = Field(min_length=1, max_length=64, description="`plan` of `GET /orphans`.")


@router.get("/orphans", response_model=OrphanList, dependencies=[OneOfFew], responses=answers(429))
def show_orphans(request: Request, settings: AppSettings) -> Any:
    """List orphans that have not changed for ten minutes, with size and reason; removes nothing."""
    return json_headers() if headers_alone(request) else orphan_list(request.app.state.engine, settings)


@router.post("/orphans", responses=answers(403, 409))
def remove_listed(request: Request, settings: AppSettings, body: OrphansRemove, actor: Actor) -> OrphansRemoved:
    """Remove the removable orphans of the given list; 409 if the list is different by now."""
    removed = remove_orphans(request.app.state.engine, settings, seen=body.plan, actor=actor)
    done = listed(settings, removed)
    return OrphansRemoved(removed=done.items, bytes=done.bytes)
