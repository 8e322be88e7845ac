"""Why a picture or a model is refused; each class carries its HTTP status and code."""

from dataclasses import dataclass


@dataclass(kw_only=True, eq=False)
class Refused(Exception):
    """A request that gets no prediction, with a message for its sender."""

    status: int
    code: str
    detail: str
    retry_after: int | None = None
    """Seconds after which the same request may succeed."""

    def __str__(self) -> str:
        return self.detail


class ImageRefused(Refused):
    """The upload cannot be classified: 413, 415 or 422."""


class ModelRefused(Refused):
    """There is no model, or its file is unusable: 404 or 409."""


class Unavailable(Refused):
    """The service cannot answer now: 503, with `retry_after` set."""


def check_bytes(size: int, limit: int) -> None:
    """Raise ImageRefused (413) if an upload of `size` bytes is over `limit`."""
    if size > limit:
        raise ImageRefused(
            status=413,
            code="upload_too_large",
            detail=f"the picture has more than {limit} bytes (at least {size}); send a smaller one",
        )
