"""One uploaded file from a multipart body, with limits applied before it is read completely."""

import asyncio
from typing import Final

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from app.inference.errors import Refused, check_bytes
from app.web.http.problems import Problem

FIELD: Final = "file"
FORM_BYTES: Final = 16 * 1024
"""What a form may add to the file: boundaries, part headers, a token field."""
MAX_PARTS: Final = 16
"""Maximum number of form fields; each costs parsing time, and only the file is used."""
DRAIN_BYTES: Final = 64 * 1024 * 1024
DRAIN_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 0.25


def problem_of_refusal(refusal: Refused) -> Problem:
    """Return the problem document for a refused picture or model."""
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    errors = [{"field": FIELD, "message": refusal.detail}] if refusal.status in {413, 415, 422} else []
    return Problem(status=refusal.status, code=refusal.code, detail=refusal.detail, headers=headers, errors=errors)


async def read_upload(request: Request, limit: int) -> bytes:
    """Return the content of the multipart field `file`.

    Raises Problem: 413 over `limit` bytes, judged by Content-Length or while reading; 415 for a body that is not a
    multipart form; 422 for a malformed form or one without exactly one such file.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        detail = (
            f"send the picture as multipart/form-data in the field {FIELD!r}, not as {kind.decode(errors='replace')!r}"
        )
        raise Problem(status=415, code="not_multipart", detail=detail)
    body = await _bounded_body(request, limit)
    upload = _FilePart()
    try:
        parser = MultipartParser(options[b"boundary"], upload.callbacks())  # type: ignore[arg-type]
        parser.write(bytes(body))
        parser.finalize()
    except FormParserError as error:
        raise _invalid(f"the multipart form is malformed: {error}") from None
    if not upload.complete:
        raise _invalid("the multipart form ends before its closing boundary")
    if upload.found != 1:
        raise _invalid(f"the form needs exactly one field {FIELD!r} with a file; it has {upload.found}")
    _check(len(upload.content), limit)
    return bytes(upload.content)


async def _bounded_body(request: Request, limit: int) -> bytearray:
    length = request.headers.get("content-length", "")
    body = bytearray()
    try:
        if length.isdigit():
            _check(int(length), limit, allowance=FORM_BYTES)
        async for chunk in request.stream():
            body += chunk
            _check(len(body), limit, allowance=FORM_BYTES)
    except ClientDisconnect:
        raise Problem(status=400, code="upload_ended", detail="the client disconnected during the upload") from None
    except Problem:
        body.clear()
        await _drain(request)
        raise
    return body


async def _drain(request: Request) -> None:
    """Discard what the client is still sending, for a limited time: it reads the answer only after its upload."""
    thrown_away, ends = 0, asyncio.get_running_loop().time() + DRAIN_SECONDS
    while thrown_away < DRAIN_BYTES and asyncio.get_running_loop().time() < ends:
        try:
            message = await asyncio.wait_for(request.receive(), IDLE_SECONDS)
        except TimeoutError:
            return
        thrown_away += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return


def _check(size: int, limit: int, allowance: int = 0) -> None:
    try:
        check_bytes(size - allowance, limit)
    except Refused as refusal:
        raise problem_of_refusal(refusal) from None


def _invalid(detail: str) -> Problem:
    return Problem(status=422, code="invalid_form", detail=detail, errors=[{"field": FIELD, "message": detail}])


class _FilePart:
    """Collects the field `file` from a multipart parser's callbacks; other fields are ignored."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.found = 0
        self.complete = False
        self._parts = 0
        self._name, self._value, self._wanted = bytearray(), bytearray(), False

    def callbacks(self) -> dict[str, object]:
        """Return the parser's callbacks."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._wanted = False
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise FormParserError(f"it has more than {MAX_PARTS} fields")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._wanted = options.get(b"name") == FIELD.encode() and b"filename" in options
            self.found += self._wanted
        self._name.clear()
        self._value.clear()

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted and self.found == 1:
            self.content += memoryview(data)[start:end]

    def _end(self) -> None:
        self.complete = True
