"""`/docs`: the API's documentation from our own files, so that it works offline and without inline script."""

from html import escape

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

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
