"""Refusals of the service layer, reported in the same way by web, command line and worker."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ValidationError

from trainer.contract.wording import fault


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One field of a request and why it is refused."""

    field: str
    message: str


class ServiceError(Exception):
    """A request that cannot be fulfilled; the text names the request, the numbers, and what would work."""

    status: ClassVar[int] = 400
    """Matching HTTP status; the command line has its own exit codes."""
    title: ClassVar[str] = "Bad request"

    def __init__(self, code: str, detail: str, errors: list[FieldError] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.errors = errors or []


class NotFound(ServiceError):
    """There is no such run, file or kind."""

    status = 404
    title = "Not found"


class Conflict(ServiceError):
    """The run's state does not allow it."""

    status = 409
    title = "Not possible in this state"


class Unacceptable(ServiceError):
    """The answer is not available in the requested format."""

    status = 406
    title = "Not available in this form"


class Refused(ServiceError):
    """A field of the request is wrong; `errors` names each."""

    status = 422
    title = "Refused"


def refusal_of(error: ValidationError, code: str, otherwise: str = "") -> Refused:
    """Return the refusal that names every invalid field; `otherwise` names the field of errors without one."""
    errors = [
        FieldError(field=str(item["loc"][0]) if item["loc"] else otherwise, message=fault(item))
        for item in error.errors()
    ]
    return Refused(code, "; ".join(f"{item.field}: {item.message}" for item in errors), errors)


def refused(field: str, message: str, code: str = "invalid") -> Refused:
    """Return a refusal of one field."""
    return Refused(code, f"{field}: {message}", [FieldError(field=field, message=message)])
