"""Why a picture or a model gets no answer; every class carries the HTTP status and code it becomes."""

from dataclasses import dataclass


@dataclass(kw_only=True, eq=False)
class Refused(Exception):
    """A request that gets no prediction, in words for the person who sent it."""

    status: int
    code: str
    detail: str
    retry_after: int | None = None
    """Seconds after which the same request may succeed."""

    def __str__(self) -> str:
        return self.detail


class ImageRefused(Refused):
    """The upload is no picture that can be answered: 413, 415 or 422."""


class ModelRefused(Refused):
    """There is no model to answer with, or its file is unusable: 404 or 409."""


class Unavailable(Refused):
    """The service cannot answer now: 503, with `retry_after` set."""


def check_bytes(size: int, limit: int) -> None:
    """Raise ImageRefused (413) when an upload of `size` bytes is over `limit`."""
    if size > limit:
        raise ImageRefused(
            status=413,
            code="upload_too_large",
            detail=f"the picture has more than {limit} bytes (at least {size}); send a smaller one",
        )
