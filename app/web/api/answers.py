"""Problems a route can answer with, as the OpenAPI document states them; good answers are documents of their own."""

from typing import Any, Final

from app.web.http.problems import MEDIA_TYPE, ProblemDocument

Answers = dict[int | str, dict[str, Any]]
ALWAYS: Final = (400, 401, 422, 429, 503)
WORDS: Final = {
    400: "The Host header names another service.",
    401: "A token is needed, or the one given is wrong.",
    403: "The viewer's token cannot write, or a page of another site asked.",
    404: "There is no such thing.",
    406: "The format cannot be given here.",
    409: "The state of things does not allow it.",
    413: "The body is over the limit.",
    415: "A picture of this type is never accepted.",
    422: "Refused: the fields at fault are named.",
    429: "Too many at once, or too many wrong tokens; Retry-After says when to come back.",
    503: "Unavailable for a moment, such as while another program holds the database; nothing was changed.",
}
PROBLEM: Final[dict[str, Any]] = {"model": ProblemDocument, "content": {MEDIA_TYPE: {}}}


def answers(*problems: int) -> Answers:
    """Return the `responses` of a route: the problems it can answer with besides every route's own."""
    return {status: {"description": WORDS[status], **PROBLEM} for status in sorted({*problems, *ALWAYS})}
