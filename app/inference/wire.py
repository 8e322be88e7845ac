"""Frames between the web process and its classifier child: a JSON document and a block of bytes.

A frame is two little-endian 32-bit lengths, the JSON, the bytes. Requests: {id, model, kinds, max_pixels} + the upload;
`kinds` are the kinds whose network the model file may contain; the first match is used.
Answers: {id, classes, probabilities, sha256, frame} or {id, refused: {kind, status, code, detail, retry_after}}.
"""

import socket
import struct
from typing import Any, Final

import orjson

LENGTHS: Final = struct.Struct("<II")


def pack(document: dict[str, Any], block: bytes = b"") -> bytes:
    """Return the frame's head: everything but `block`, which follows it on the wire."""
    text = orjson.dumps(document)
    return LENGTHS.pack(len(text), len(block)) + text


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return the next frame of a blocking socket. Raises EOFError if the peer is gone."""
    text_length, block_length = LENGTHS.unpack(_exactly(connection, LENGTHS.size))
    document: dict[str, Any] = orjson.loads(_exactly(connection, text_length))
    return document, _exactly(connection, block_length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if not count:
            raise EOFError("the other side closed the connection")
        done += count
    return bytes(data)
