"""The web process's side of classification: one child process, started on first use, shared by all requests.

Interface for routes, pages and commands:

- `Classifier(max_pixels=..., max_bytes=...)`: one per application, in `app.state.classifier`; starts nothing yet.
- `await classifier.classify(data, model_path, kinds)` -> `Prediction`, by the network of one of `kinds`; raises a
  `Refused` of `app.inference.errors`, whose `status`, `code`, `detail` and `retry_after` are the HTTP answer. Safe to
  call concurrently; the child batches.
- `prediction.document(run_id)` -> the JSON of REST, page and command: class, confidence, probabilities (by class name,
  in the model's order), run_id, model_sha256, seconds, and `frame` for a file with several frames.
- `await classifier.close()` in the application's shutdown.
- Choice of the model: `app.inference.choose`. Without an event loop (commands): `app.inference.local.classify_files`.
"""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import Field

from app.documents import Document
from app.environment import for_children
from app.inference import wire
from app.inference.errors import ImageRefused, ModelRefused, Refused, Unavailable, check_bytes
from app.places import module_argv, module_environment

MAX_WAITING: Final = 128
"""Requests in flight; at 250 answers a second the last one waits half a second."""
MAX_WAITING_BYTES: Final = 48 * 1024 * 1024
ANSWER_SECONDS: Final = 60.0
"""Longer than any bounded queue takes, including the child's start; after this the child counts as hung."""
CHILD_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Blocks of a large picture (16 MiB each) are returned to the system after the answer; glibc would start keeping
    # them.
    "MALLOC_MMAP_THRESHOLD_": str(8 * 1024 * 1024),
}
CLOSE_SECONDS: Final = 5.0
KINDS: Final[dict[str, type[Refused]]] = {kind.__name__: kind for kind in (ImageRefused, ModelRefused, Unavailable)}


class PredictionDocument(Document):
    """The class of a picture; `frame` is present only for a file with several frames."""

    best: str = Field(alias="class")
    confidence: float = Field(json_schema_extra={"minimum": 0, "maximum": 1})
    probabilities: dict[str, float] = Field(description="They sum to 1.")
    run_id: int | None = Field(description="The run whose model was used.")
    model_sha256: str
    seconds: float = Field(description="From the whole upload to the answer.")
    frame: int | None = Field(None, description="The frame that was used.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answer for one picture."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    """One per class, summing to 1."""
    model_sha256: str
    frame: int | None
    """The frame that was used if the file has several."""
    seconds: float
    """From the call to the answer, including waiting."""

    def document(self, run_id: int | None) -> PredictionDocument:
        """Return the JSON answer; `run_id` is None for a model given as a file."""
        best = max(range(len(self.classes)), key=self.probabilities.__getitem__)
        several = {} if self.frame is None else {"frame": self.frame}
        return PredictionDocument(
            best=self.classes[best],
            confidence=self.probabilities[best],
            probabilities=dict(zip(self.classes, self.probabilities, strict=True)),
            run_id=run_id,
            model_sha256=self.model_sha256,
            seconds=round(self.seconds, 6),
            **several,
        )


class Classifier:
    """Sends pictures to the child and restarts it when needed; a request that hits a dying child is sent once more."""

    def __init__(self, *, max_pixels: int, max_bytes: int, max_waiting: int = MAX_WAITING) -> None:
        self._max_pixels, self._max_bytes, self._max_waiting = max_pixels, max_bytes, max_waiting
        self._child: _Child | None = None
        self._waiting = self._waiting_bytes = 0

    @property
    def pid(self) -> int | None:
        """Process id of the child, None while there is none."""
        return None if self._child is None or self._child.ended else self._child.process.pid

    async def classify(self, data: bytes, model: Path, kinds: Sequence[str]) -> Prediction:
        """Return the answer of the model file `model` for one uploaded picture; raises Refused.

        `kinds` names the kinds whose network the file may hold.
        """
        started = time.perf_counter()
        check_bytes(len(data), self._max_bytes)
        if self._waiting and (
            self._waiting >= self._max_waiting or self._waiting_bytes + len(data) > MAX_WAITING_BYTES
        ):
            raise Unavailable(
                status=503, code="busy", detail=f"{self._waiting} pictures are already waiting", retry_after=1
            )
        self._waiting += 1
        self._waiting_bytes += len(data)
        try:
            request = {"model": str(model), "kinds": list(kinds), "max_pixels": self._max_pixels}
            answer = await self._ask_twice(request, data)
        finally:
            self._waiting -= 1
            self._waiting_bytes -= len(data)
        return _prediction(answer, time.perf_counter() - started)

    async def close(self) -> None:
        """End the child and wait for it."""
        child, self._child = self._child, None
        if child is not None:
            await child.close()

    async def _ask_twice(self, request: dict[str, Any], data: bytes) -> dict[str, Any]:
        for _ in range(2):
            try:
                child = self._living_child()
                return await asyncio.wait_for(child.ask(request, data), ANSWER_SECONDS)
            except TimeoutError:
                child.process.kill()  # hung: all other waiting requests fail at once
                break
            except (ConnectionError, OSError):
                continue
        raise Unavailable(
            status=503, code="classifier_failed", detail="the classifier process ended; try again", retry_after=1
        )

    def _living_child(self) -> "_Child":
        # No await between the check and the start: two concurrent requests must not start two children.
        child = self._child
        if child is None or child.ended or child.loop is not asyncio.get_running_loop():
            if child is not None and not child.ended:
                child.process.kill()
            self._child = child = _Child()
        return child


class _Child:
    """One child process and the requests it has not answered yet."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended = False
        self._numbers = 0
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                module_argv("app.inference.server", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**module_environment(for_children(os.environ)), **CHILD_ENVIRONMENT},
                start_new_session=True,  # a Ctrl-C at the terminal is handled by the web process; the child ends on EOF
            )
        self._streams = self.loop.create_task(asyncio.open_connection(sock=ours))
        self._listener = self.loop.create_task(self._listen())

    async def ask(self, request: dict[str, Any], data: bytes) -> dict[str, Any]:
        """Return the child's answer. Raises ConnectionError if the child ends first."""
        _, writer = await asyncio.shield(self._streams)
        if self.ended:
            raise ConnectionResetError("the classifier process ended")
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[dict[str, Any]] = self.loop.create_future()
        self._pending[number] = answer
        try:
            writer.writelines((wire.pack({"id": number, **request}, data), data))
            await writer.drain()
            return await answer
        finally:
            del self._pending[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # retrieved even if sending failed first, or asyncio would complain

    async def close(self) -> None:
        """Close the connection, which ends the child, and wait for both."""
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)
        _, writer = await self._streams
        writer.close()
        try:
            await asyncio.to_thread(self.process.wait, CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)

    async def _listen(self) -> None:
        reader, writer = await self._streams
        try:
            while True:
                text_length, _ = wire.LENGTHS.unpack(await reader.readexactly(wire.LENGTHS.size))
                answer = orjson.loads(await reader.readexactly(text_length))
                waiting = self._pending.get(answer["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended = True
            writer.close()
            for waiting in self._pending.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError("the classifier process ended"))
            self.loop.run_in_executor(None, self.process.wait)


def _prediction(answer: dict[str, Any], seconds: float) -> Prediction:
    refused = answer.get("refused")
    if refused is not None:
        raise KINDS[refused.pop("kind")](**refused)
    return Prediction(
        classes=tuple(answer["classes"]),
        probabilities=tuple(answer["probabilities"]),
        model_sha256=answer["sha256"],
        frame=answer["frame"],
        seconds=seconds,
    )
