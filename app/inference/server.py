"""The classifier child: `python -m app.inference.server FD` answers frames on a socket until the peer is gone.

The only part of the web application that imports torch. One thread reads, decodes and answers in batches, on one core;
a second one decodes large pictures, so that they do not delay other requests.
"""

import importlib
import os
import queue
import socket
import sys
import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from select import select
from typing import Any, Final

import torch
from torch import nn

from app.inference import wire
from app.inference.errors import ModelRefused, Refused, Unavailable
from app.inference.images import decode, open_picture, read_picture
from trainer.common.answering import BATCHES, Answerer
from trainer.common.model_file import ModelFileRefused, ModelHeader, load_model
from trainer.contract.kinds import classifiers
from trainer.contract.pictures import Picture

MAX_BATCH: Final = BATCHES[0]
"""Maximum number of pictures answered before the queue is checked again."""
MODELS_KEPT: Final = 4
LARGE_PIXELS: Final = 512 * 512
LARGE_BYTES: Final = 256 * 1024
MAX_LARGE_WAITING: Final = 8
"""Large pictures take up to a second each; a longer queue would exceed a person's patience."""


class Models:
    """Models by file; the most recently used are kept in memory, a changed file is read again."""

    def __init__(self, kept: int = MODELS_KEPT) -> None:
        self._kept = kept
        self._models: OrderedDict[tuple[Any, ...], Answerer] = OrderedDict()

    def get(self, path: Path, kinds: tuple[str, ...]) -> Answerer:
        """Return the model in `path`, whose network is that of one of `kinds`.

        Raises ModelRefused: 404 if there is none, 409 if it is unusable.
        """
        try:
            status = path.stat()
            key = (str(path), kinds, status.st_ino, status.st_mtime_ns, status.st_size)
            if key not in self._models:
                self._models[key] = answerer(path, kinds)
        except ModelFileRefused as error:
            raise ModelRefused(status=409, code="model_refused", detail=f"the model is unusable: {error}") from None
        except OSError as error:
            raise ModelRefused(
                status=404,
                code="model_missing",
                detail=f"the model file {path.name} cannot be read ({error.strerror}); train a run of kind "
                f"{' or '.join(kinds)} to get one",
            ) from None
        self._models.move_to_end(key)
        while len(self._models) > self._kept:
            self._models.popitem(last=False)
        return self._models[key]


def answerer(path: Path, kinds: tuple[str, ...]) -> Answerer:
    """Return the model in `path` with the network of the first of `kinds` that its weights fit.

    The code that builds the network comes from the installed kinds, never from the file. Raises ModelFileRefused,
    OSError.
    """
    refusals: list[ModelFileRefused] = []
    for kind in kinds:
        try:
            return Answerer(load_model(path, partial(build_network, kind)))
        except ModelFileRefused as refusal:
            refusals.append(refusal)
    if len(refusals) == 1:
        raise refusals[0]
    texts = "; ".join(f"as a model of {kind}: {text}" for kind, text in zip(kinds, refusals, strict=True))
    raise ModelFileRefused(texts or "no installed kind trains a classifier")


def build_network(kind: str, header: ModelHeader) -> nn.Module:
    """Return the network of an installed kind.

    Raises KeyError for a kind without a classifier, and what the kind raises.
    """
    module, function = classifiers()[kind].network.split(":")
    network: nn.Module = getattr(importlib.import_module(module), function)(header)
    return network


@dataclass(frozen=True, slots=True)
class Job:
    """One decoded picture that waits for its answer."""

    number: int
    model: tuple[Path, tuple[str, ...]]
    """The model file, and the kinds whose network it may contain."""
    picture: Picture


class Server:
    """Reads requests from a socket, decodes, answers. One thread does everything except decoding large pictures."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._models = Models()
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large")
        self._large_waiting = 0
        self._decoded: queue.SimpleQueue[Job | tuple[int, Refused]] = queue.SimpleQueue()
        self._wake, self._wakened = socket.socketpair()

    def run(self) -> None:
        """Answer until the peer is gone. Raises EOFError or another OSError then."""
        while True:
            readable, _, _ = select([self._connection, self._wakened], [], [])
            jobs = self._large_jobs() if self._wakened in readable else []
            # Requests that arrived during the last batch form this batch.
            while len(jobs) < MAX_BATCH and select([self._connection], [], [], 0)[0]:
                jobs += self._accept(*wire.receive(self._connection))
            for model in dict.fromkeys(job.model for job in jobs):
                self._answer(model, [job for job in jobs if job.model == model])

    def _large_jobs(self) -> list[Job]:
        jobs: list[Job] = []
        for _ in self._wakened.recv(MAX_LARGE_WAITING):
            self._large_waiting -= 1
            decoded = self._decoded.get()
            if isinstance(decoded, Job):
                jobs.append(decoded)
            else:
                self._refuse(*decoded)
        return jobs

    def _accept(self, request: dict[str, Any], data: bytes) -> list[Job]:
        try:
            if len(data) <= LARGE_BYTES:
                image = open_picture(data, request["max_pixels"])
                if image.width * image.height <= LARGE_PIXELS:
                    return [Job(request["id"], _model(request), decode(image, request["max_pixels"]))]
            if self._large_waiting == MAX_LARGE_WAITING:
                raise Unavailable(
                    status=503,
                    code="busy",
                    detail=f"{MAX_LARGE_WAITING} large pictures are already waiting; send smaller ones or try again",
                    retry_after=2,
                )
            self._large_waiting += 1
            self._large.submit(self._read_large, request, data)
        except Refused as refusal:
            self._refuse(request["id"], refusal)
        return []

    def _read_large(self, request: dict[str, Any], data: bytes) -> None:
        try:
            picture = read_picture(data, request["max_pixels"])
            self._decoded.put(Job(request["id"], _model(request), picture))
        except Refused as refusal:
            self._decoded.put((request["id"], refusal))
        except BaseException:
            os._exit(1)  # a bug: the web process fails the waiting requests and starts another child
        self._wake.send(b".")

    def _answer(self, wanted: tuple[Path, tuple[str, ...]], jobs: list[Job]) -> None:
        try:
            model = self._models.get(*wanted)
            rows = model.probabilities([job.picture.pixels for job in jobs])
        except Refused as refusal:
            for job in jobs:
                self._refuse(job.number, refusal)
            return
        for job, row in zip(jobs, rows, strict=True):
            self._send(
                {
                    "id": job.number,
                    "classes": model.classes,
                    "probabilities": row,
                    "sha256": model.sha256,
                    "frame": job.picture.frame,
                }
            )

    def _refuse(self, number: int, refusal: Refused) -> None:
        self._send({"id": number, "refused": {"kind": type(refusal).__name__, **vars(refusal)}})

    def _send(self, document: dict[str, Any]) -> None:
        self._connection.sendall(wire.pack(document))


def _model(request: dict[str, Any]) -> tuple[Path, tuple[str, ...]]:
    return Path(request["model"]), tuple(request["kinds"])


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    warnings.simplefilter("ignore")  # Pillow warns about oddities of uploads; the answer reports what matters
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    with suppress(EOFError, OSError):
        Server(socket.socket(fileno=int(sys.argv[1]))).run()
    os._exit(0)  # no client is left to answer, and a picture still being decoded is not worth finishing


if __name__ == "__main__":
    main()
