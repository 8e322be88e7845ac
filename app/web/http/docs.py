"""`/docs`: the API's documentation from our own files, so that it works offline and without inline scripts."""

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse

from app.formats import first_clause

router = APIRouter(include_in_schema=False)

TAGS: Final[list[Mapping[str, Any]]] = [
    {"name": "runs", "description": "Record, read, edit, cancel, retry and delete runs."},
    {"name": "telemetry", "description": "Events, metrics, resource use and output of a run's ranks."},
    {"name": "files", "description": "Outputs of a run: result, artifacts, checkpoints."},
    {"name": "exports", "description": "A run or a whole list as CSV, JSON or Parquet."},
    {"name": "catalogue", "description": "Kinds of runs, and runs side by side."},
    {"name": "sharing", "description": "JUnit, badges, trends, a page to share, the webhook."},
    {"name": "classification", "description": "Classify pictures with a run's model."},
    {"name": "keeping", "description": "Disk usage, retention and orphans."},
    {"name": "audit", "description": "Who did what."},
    {"name": "health", "description": "Health and status of the service."},
]
"""Groups of the API in the order in which the documentation shows them."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API · ddp-audit</title>
<meta name="color-scheme" content="light dark">
<link rel="stylesheet" href="{prefix}/static/vendor/swagger-ui.css">
<link rel="stylesheet" href="{prefix}/static/css/docs.css">
<link rel="icon" href="data:,">
</head>
<body>
<noscript>This page needs JavaScript; the description itself is at <a href="{prefix}/openapi.json">openapi.json</a>.
</noscript>
<nav class="way-back" aria-label="Main"><a href="{prefix}/runs">Back to the runs</a></nav>
<div id="api" data-description="{prefix}/openapi.json"></div>
<script src="{prefix}/static/vendor/swagger-ui-bundle.js"></script>
<script src="{prefix}/static/js/docs.js"></script>
</body>
</html>
"""


@router.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> HTMLResponse:
    """Show the API's documentation."""
    prefix = escape(str(request.scope.get("root_path") or ""), quote=True)
    return HTMLResponse(PAGE.format(prefix=prefix))


class Described(FastAPI):
    """An application whose OpenAPI document summarises every operation by its description, not by a function name."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, generated once."""
        if self.openapi_schema is None:
            for path in super().openapi()["paths"].values():
                for operation in path.values():
                    if "description" in operation:
                        operation["summary"] = first_clause(operation["description"]).replace("`", "")
        return super().openapi()
