"""Problems that routes can return, as listed in the OpenAPI document; successful answers have their own documents."""

from typing import Any, Final

from app.web.http.problems import MEDIA_TYPE, ProblemDocument

Answers = dict[int | str, dict[str, Any]]
ALWAYS: Final = (400, 401, 422, 429, 503)
WORDS: Final = {
    400: "The Host header names another service.",
    401: "A token is required, or the given token is wrong.",
    403: "The viewer's token cannot write, or the request came from a page of another site.",
    404: "Not found.",
    406: "The requested format is not available.",
    409: "The current state does not allow it.",
    413: "The body is over the limit.",
    415: "A picture of this type is never accepted.",
    422: "Refused; the invalid fields are named.",
    429: "Too many requests at once, or too many wrong tokens; Retry-After says when to try again.",
    503: "Temporarily unavailable, for example while another program locks the database; nothing was changed.",
}
PROBLEM: Final[dict[str, Any]] = {"model": ProblemDocument, "content": {MEDIA_TYPE: {}}}


def answers(*problems: int) -> Answers:
    """Return the `responses` of a route: its problems, in addition to those of every route."""
    return {status: {"description": WORDS[status], **PROBLEM} for status in sorted({*problems, *ALWAYS})}
