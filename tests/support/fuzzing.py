"""Requests generated from the service's OpenAPI document, sent with some role, and what the answers reveal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

SAFE = {"GET", "HEAD", "OPTIONS"}
ANSWER_BYTES = 65_536


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request and how it was answered."""

    label: str
    """Method and path template."""
    method: str
    status: int
    address: str
    body: str
    text: str


@schemathesis.serializer("application/zip")
def _archive(_context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def draw_and_send(
    url: str, document: Mapping[str, Any], headers: Mapping[str, str], run_ids: Sequence[int], examples: int
) -> list[Answer]:
    """Send `examples` well-formed and as many ill-formed requests to every operation and return the answers."""
    answers: list[Answer] = []
    schema = schemathesis.openapi.from_dict(dict(document))
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]  # an operation that cannot be read raises here
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                for known in (None, {"run_id": st.sampled_from(list(run_ids))}):
                    if known is not None and "{run_id}" not in operation.path:
                        continue
                    answers += _of_operation(operation, mode, known, (session, url, headers), examples)
    return answers


def _of_operation(
    operation: Any,
    mode: GenerationMode,
    known: dict[str, Any] | None,
    sender: tuple[requests.Session, str, Mapping[str, str]],
    examples: int,
) -> list[Answer]:
    session, url, headers = sender
    answers: list[Answer] = []

    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def send(case: Any, data: st.DataObject) -> None:
        if known is not None:
            case.path_parameters = {
                **(case.path_parameters or {}),
                **{name: data.draw(strategy) for name, strategy in known.items()},
            }
        answers.append(_send(session, url, headers, case))

    try:
        send()
    except hypothesis.errors.Unsatisfiable:
        return []  # an operation without parameters has no ill-formed requests
    return answers


def _send(session: requests.Session, url: str, headers: Mapping[str, str], case: Any) -> Answer:
    arguments = case.as_transport_kwargs(base_url=url)
    arguments["headers"] = {**dict(arguments.get("headers") or {}), **headers}
    arguments.pop("cookies", None)  # the client's own session cookie is not an input of an operation
    with session.request(**arguments, stream=True, timeout=30, allow_redirects=False) as response:
        text = ""
        if "text/event-stream" not in response.headers.get("content-type", ""):  # a stream of a waiting run never ends
            text = next(response.iter_content(ANSWER_BYTES), b"").decode(errors="replace")
    return Answer(
        label=f"{case.operation.method.upper()} {case.operation.path}",
        method=case.operation.method.upper(),
        status=response.status_code,
        address=str(response.url),
        body=repr(arguments.get("json", arguments.get("data")))[:300],
        text=text[:300],
    )


REFUSED = frozenset({400, 401, 403, 405, 429})
"""Statuses of a request that was not admitted; 429 is the answer to more than ten wrong tokens."""


def server_errors(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield every answer of 500 or above; 503 reports readiness and a full queue."""
    for answer in answers:
        if answer.status >= 500 and answer.status != 503:
            yield f"{answer.label}: {answer.status} for {answer.address} {answer.body}: {answer.text}"


def unauthorised_writes(answers: Sequence[Answer], reads: Sequence[str]) -> Iterator[str]:
    """Yield every write that was not refused for lack of permission; `reads` are POSTs that change nothing."""
    for answer in answers:
        if answer.method not in SAFE and answer.label not in reads and answer.status not in REFUSED:
            yield f"{answer.label}: {answer.status} for {answer.address} {answer.body}"
