"""Errors as RFC 9457 problem documents, and the hook that lets pages show them as HTML."""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.db import first_line, why_unavailable
from app.documents import Document
from app.runs.errors import ServiceError
from trainer.contract.wording import fault

MEDIA_TYPE: Final = "application/problem+json"
BASE: Final = "/api/v1"
CODES: Final[Mapping[int, str]] = {
    400: "bad_request",
    401: "unauthorised",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
}

BARE: Final[Mapping[int, str]] = {
    404: "there is nothing at this address; it may be mistyped, or its content was removed",
    405: "this address does not accept this method; the header Allow lists the accepted methods",
}
"""Details for statuses where the framework only repeats the status text."""

log = structlog.get_logger(__name__)


class FieldMessage(Document):
    """One refused field."""

    field: str
    message: str


class ProblemDocument(Document):
    """RFC 9457 problem; further members depend on its code."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldMessage] | None = Field(None, description="For a refusal: every invalid field.")


class Problem(Exception):
    """An error answer; raise it anywhere below a route."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        title: str | None = None,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.title = title or HTTPStatus(status).phrase
        self.detail = detail
        self.headers = dict(headers or {})
        self.errors = [dict(error) for error in errors]
        """Each {field, message}."""
        self.extra = dict(extra or {})
        """Further members of the document."""

    def document(self) -> ProblemDocument:
        """Return the problem document."""
        errors = {"errors": self.errors} if self.errors else {}
        return ProblemDocument(
            type=f"urn:ddp-audit:problem:{self.code}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            code=self.code,
            **errors,
            **self.extra,
        )

    def response(self) -> Response:
        """Return the problem document as a response."""
        return Response(self.document().model_dump_json(exclude_unset=True), self.status, self.headers, MEDIA_TYPE)


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path of a request without the prefix that a proxy may have added."""
    path, prefix = str(scope["path"]), str(scope.get("root_path") or "")
    if prefix and (path == prefix or path.startswith(f"{prefix}/")):
        return path[len(prefix) :] or "/"
    return path


ErrorPage = Callable[[Request, Problem], Response]
"""Renders a problem for a person; set as `app.state.error_page` by the pages."""


def wants_html(request: Request) -> bool:
    """Return whether the client expects a page: a path outside the API, and HTML is accepted."""
    outside_api = not route_path(request.scope).startswith("/api/")
    return outside_api and "text/html" in request.headers.get("accept", "")


def answer(request: Request, problem: Problem) -> Response:
    """Return `problem` in the form the client understands."""
    error_page: ErrorPage | None = getattr(request.app.state, "error_page", None)
    if error_page is None or not wants_html(request):
        return problem.response()
    response = error_page(request, problem)
    response.headers.update(problem.headers)
    return response


def from_service(error: ServiceError) -> Problem:
    """Return the problem for a refusal of the service layer."""
    errors = [{"field": item.field, "message": item.message} for item in error.errors]
    return Problem(error.status, error.code, error.detail, title=error.title, errors=errors)


def from_validation(error: RequestValidationError) -> Problem:
    """Return the problem that names every field of a request that does not match the schema."""
    errors = [{"field": _field(item), "message": _sentence(item)} for item in error.errors()]
    detail = "; ".join(f"{item['field']}: {item['message']}" for item in errors)
    return Problem(422, "invalid", detail or "the request does not match the schema", title="Refused", errors=errors)


def _field(item: Mapping[str, Any]) -> str:
    # The first part is the location (body, query, path); only the field's name helps the reader.
    where, *parts = (str(part) for part in item["loc"])
    if item["type"] == "json_invalid":  # the second part is a position in the text
        return where
    if where == "query":  # the index of a repeated value adds nothing to the message
        parts = parts[:1]
    return ".".join(parts) or where


def _sentence(item: Mapping[str, Any]) -> str:
    if item["type"] == "json_invalid":
        place = item["loc"][-1]
        return f"not valid JSON: {item.get('ctx', {}).get('error', item['msg'])} (at character {place})"
    if item["type"] == "model_attributes_type":
        return "must be a JSON object, sent as application/json"
    return fault(item)


def from_http(error: HTTPException) -> Problem:
    """Return the problem for an error the framework raised."""
    if error.status_code == HTTPStatus.BAD_REQUEST and isinstance(error.__cause__, (ValueError, RecursionError)):
        return _unreadable_body()
    code = CODES.get(error.status_code, "error")
    detail = str(error.detail)
    if detail == HTTPStatus(error.status_code).phrase:  # the framework's own refusals contain only the status text
        detail = BARE.get(error.status_code, detail)
    return Problem(error.status_code, code, detail, headers=error.headers)


def _unreadable_body() -> Problem:
    # The framework returns 422 only for JSON syntax errors; other failures of Python's parser are treated in the same
    # way.
    message = "cannot be read as JSON: nested too deeply, a number with thousands of digits, or not UTF-8"
    errors = [{"field": "body", "message": message}]
    return Problem(422, "invalid", f"body: {message}", title="Refused", errors=errors)


def problem_of(error: Exception) -> Problem:
    """Return the problem for `error`; anything unforeseen becomes a 500 without details."""
    match error:
        case Problem():
            return error
        case ServiceError():
            return from_service(error)
        case RequestValidationError():
            return from_validation(error)
        case HTTPException():
            return from_http(error)
    if reason := why_unavailable(error):
        detail = f"the database cannot be used now ({reason}); nothing was changed, try again in a moment"
        return Problem(503, "database_unavailable", detail, headers={"Retry-After": "5"})
    return Problem(500, "internal", "internal error; see the service log")


def install(app: FastAPI, *, log_unavailable: bool = True) -> None:
    """Turn every error of `app` into a problem document or, for a person, an error page.

    Faults are logged, and with `log_unavailable` also in one line that the database cannot be used.
    """

    async def handle(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("request failed", action="request-failed", path=request.url.path, exc_info=error)
        elif problem.code == "database_unavailable" and log_unavailable:
            why = first_line(error)
            log.error("the database is unavailable", action="database-away", path=request.url.path, error=why)
        return answer(request, problem)

    for kind in (Problem, ServiceError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)
