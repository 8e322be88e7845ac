"""Registered targets: training code whose gradients can be audited."""

from fastapi import APIRouter

from app.runs.targets import TargetCheck, TargetCheckRequest, TargetList, check_target, target_list
from app.web.api.answers import answers
from app.web.api.replies import AppSettings, OneOfFew, OperatorOnly

router = APIRouter(tags=["catalogue"])


@router.get("/targets", responses=answers())
def list_targets(settings: AppSettings) -> TargetList:
    """List the registered targets, and registrations that cannot be used; may wait until they are imported."""
    return target_list(settings)


@router.post("/targets/{name}/check", dependencies=[OperatorOnly, OneOfFew], responses=answers(403, 404, 422, 429))
def check_one_target(settings: AppSettings, name: str, request: TargetCheckRequest) -> TargetCheck:
    """Call every member of a target once, in a separate process; `accumulate` and `wrap` need a run."""
    return check_target(settings, name, request.ranks)
