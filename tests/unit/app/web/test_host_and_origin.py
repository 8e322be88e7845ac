"""Hosts and origins as written in headers."""

import pytest
from starlette.datastructures import Headers

from app.web.http.problems import Problem
from app.web.security.hosts import check_host, check_origin

ALLOWED = ("127.0.0.1", "localhost", "::1", "*.example.org", "Audit.Example.com")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8000", "LOCALHOST", "[::1]:80", "a.example.org", "a.b.example.org", "audit.example.com"],
)
def test_own_names_are_answered(host: str) -> None:
    check_host(Headers({"host": host}), ALLOWED)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "example.org",
        "evil",
        "127.0.0.1.evil",
        "localhost@evil",
        "evil/127.0.0.1",
        "127.0.0.1:99999",
        "127.0.0.1#x",
        "::1",
    ],
)
def test_other_names_are_refused(host: str) -> None:
    with pytest.raises(Problem) as caught:
        check_host(Headers({"host": host}), ALLOWED)
    assert caught.value.status == 400


def test_two_hosts_are_refused() -> None:
    headers = Headers(raw=[(b"host", b"127.0.0.1"), (b"host", b"localhost")])
    with pytest.raises(Problem):
        check_host(headers, ALLOWED)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://a.b:8000", "a.b:8000"),
        ("http://a.b", "a.b:80"),
        ("https://a.b", "a.b"),
        ("https://a.b:443", "a.b"),
        ("http://[::1]:8", "[::1]:8"),
        ("HTTP://A.B", "a.b"),
    ],
)
def test_own_page_may_write(origin: str, host: str) -> None:
    check_origin("POST", Headers({"origin": origin, "host": host}))


@pytest.mark.parametrize(
    ("origin", "host"),
    [("http://a.b:8001", "a.b:8000"), ("http://a.c", "a.b"), ("null", "a.b"), ("http://a.b", "a.b:443"), ("", "a.b")],
)
def test_foreign_page_may_not_write(origin: str, host: str) -> None:
    headers = Headers({"origin": origin, "host": host})
    check_origin("GET", headers)
    with pytest.raises(Problem) as caught:
        check_origin("DELETE", headers)
    assert caught.value.status == 403
