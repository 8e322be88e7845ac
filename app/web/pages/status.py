"""`/status`: whether runs can start: problems, workers, queue, versions and disk."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.settings import SLURM
from app.status import standing
from app.web.status.health import product_version
from app.web.views import rendering

router = APIRouter(include_in_schema=False)


@router.get("/status", name="status_page")
def show(request: Request) -> Response:
    """Show the status of the service."""
    state = request.app.state
    found = standing(state.engine, state.settings, state.write_probe)
    return rendering.page(
        request,
        "pages/status/show.html",
        nav="status",
        standing=found,
        version=product_version(),
        max_cpu_runs=state.settings.max_cpu_runs,
        max_jobs=state.settings.slurm_max_jobs if state.settings.executor == SLURM else 0,
    )
