"""Host and Origin: the names the service answers to, and the pages that may send writes."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers

from app.web.http.problems import Problem

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def check_host(headers: Headers, allowed: Sequence[str]) -> None:
    """Raise Problem 400 unless the Host header names this service.

    A page elsewhere can make a browser talk to 127.0.0.1 under its own name (DNS rebinding); this check prevents it.
    """
    given = headers.getlist("host")
    name = _split(given[0]).hostname if len(given) == 1 else None
    if name is None or not any(_matches(name, pattern.lower().strip("[]")) for pattern in allowed):
        shown = ", ".join(given)[:100]
        raise Problem(
            400,
            "foreign_host",
            f"this service does not answer to the host {shown!r}; DDP_AUDIT_ALLOWED_HOSTS lists those it answers to",
        )


def _split(authority: str) -> SplitResult:
    try:
        parts = urlsplit(f"//{authority}")
        _ = parts.port  # raises for an invalid port
    except ValueError:
        return urlsplit("")
    plain = parts.netloc == authority and not parts.username
    return parts if plain else urlsplit("")


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:])
    return pattern in {"*", name}


def check_origin(method: str, headers: Headers) -> None:
    """Raise Problem 403 for a write sent by a foreign page.

    Browsers send the origin of a write; other clients send none and are admitted.
    """
    if method in SAFE_METHODS:
        return
    origin = headers.get("origin")
    foreign = headers.get("sec-fetch-site") in {"cross-site", "same-site"} if origin is None else True
    if foreign and (origin is None or not _same(origin, headers.get("host", ""))):
        raise Problem(403, "foreign_origin", f"a page of {(origin or 'another site')[:100]!r} may not write here")


def _same(origin: str, host: str) -> bool:
    try:
        source = urlsplit(origin)
        port = source.port or DEFAULT_PORTS.get(source.scheme)
    except ValueError:
        return False
    target = _split(host)
    # Behind a proxy that terminates TLS the scheme seen here differs from the page's: either default port is accepted.
    target_port = target.port or DEFAULT_PORTS.get(source.scheme)
    return source.hostname is not None and (source.hostname, port) == (target.hostname, target_port)
