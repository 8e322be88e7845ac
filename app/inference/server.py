"""The classifier child: `python -m app.inference.server FD` answers frames on a socket until the other side is gone.

The only part of the web application that imports torch. One thread reads, decodes and answers in batches, on one core;
a second one decodes large pictures, so that they hold nobody up.
"""

import os
import queue
import socket
import sys
import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from app.inference import wire
from app.inference.errors import ModelRefused, Refused, Unavailable
from app.inference.images import Picture, decode, open_picture, read_picture
from trainer.common.model_file import ImageModel, ModelFileRefused, load_model
from trainer.kinds.cifar.train.model import CifarNet

BATCHES: Final = (8, 4, 2, 1)
"""Sizes a batch may have: few, because the convolution library prepares itself for every new one."""
MKLDNN: Final = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
PREPACKING: Final = MKLDNN and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
SHAPE: Final = ((1, 1), (1, 1), (1, 1), 1)
"""Padding, stride, dilation and groups of every convolution of the network."""
SAME_LOGITS: Final = 1e-9
"""What float64 rounding may change in a batch; one other bit in a convolution changes a hundred times more."""
MAX_BATCH: Final = BATCHES[0]
"""Pictures answered before the queue is looked at again."""
MODELS_KEPT: Final = 4
LARGE_PIXELS: Final = 512 * 512
LARGE_BYTES: Final = 256 * 1024
MAX_LARGE_WAITING: Final = 8
"""Large pictures take up to a second each; more of them would wait longer than a person does."""


class Convolution(nn.Module):
    """A 3x3 convolution that takes the same path through the library for one picture as for many.

    torch sends a single small picture through another implementation than a batch, with other last bits. Where torch
    offers it, the weights are laid out for the library once instead of at every call: same bits, a sixth less time.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer
        self._packed: Tensor | None = None
        if PREPACKING:
            with torch.inference_mode():
                self._packed = torch.ops.mkldnn._reorder_convolution_weight(layer.weight, *SHAPE, None)

    def forward(self, images: Tensor) -> Tensor:
        """Return what `layer` returns for (B, C, H, W)."""
        layer = self.layer
        if self._packed is not None:
            result: Tensor = torch.ops.mkldnn._convolution_pointwise(
                images, self._packed, layer.bias, *SHAPE, "none", [], ""
            )
        elif MKLDNN:
            result = torch.mkldnn_convolution(images, layer.weight, layer.bias, *SHAPE)
        else:
            result = layer(images)
        return result


class Answerer:
    """One model, prepared to answer: BatchNorm folded into the convolutions, channels last, FP32, evaluation mode.

    Pooling and the linear layer run in float64: there the order of a sum, which depends on the size of the batch, no
    longer shows.
    """

    def __init__(self, model: ImageModel) -> None:
        network = model.network
        if not isinstance(network, CifarNet):
            raise TypeError(f"a {type(network).__name__} cannot be prepared")
        self.classes, self.sha256 = list(model.classes), model.sha256
        self._blocks = nn.Sequential(*(_folded(block) for block in network.blocks)).to(
            memory_format=torch.channels_last
        )
        self._blocks.eval()
        self._head = network.head.double()
        # (pixel / 255 - mean) / deviation as one multiplication and one addition per channel
        deviations = torch.tensor(model.channel_deviations, dtype=torch.float64)
        means = torch.tensor(model.channel_means, dtype=torch.float64)
        self._scale = (1 / (255 * deviations)).float()
        self._shift = (-means / deviations).float()
        self._size = model.input_size
        self.batches = self._exact_batches()

    def probabilities(self, pictures: list[bytes]) -> list[list[float]]:
        """Return the class probabilities of each picture (32 x 32 x 3 bytes), each summing to 1."""
        rows: list[list[float]] = []
        while len(rows) < len(pictures):
            left = len(pictures) - len(rows)
            size = next(size for size in self.batches if size <= left)
            rows += self.logits(pictures[len(rows) : len(rows) + size]).softmax(1).tolist()
        return rows

    def logits(self, pictures: list[bytes]) -> Tensor:
        """Return the logits (B, classes), float64, of one batch."""
        with torch.inference_mode():
            flat = torch.frombuffer(bytearray(b"".join(pictures)), dtype=torch.uint8)
            pixels = flat.view(len(pictures), self._size, self._size, 3)
            images = (pixels * self._scale + self._shift).permute(0, 3, 1, 2)  # already channels last in memory
            features = self._blocks(images.contiguous(memory_format=torch.channels_last))
            logits: Tensor = self._head(features.double().mean((2, 3)))
            return logits

    def _exact_batches(self) -> tuple[int, ...]:
        """Return the batch sizes that give, on this machine, the numbers of one picture alone."""
        largest, generator = BATCHES[0], torch.Generator().manual_seed(0)
        noise = torch.randint(0, 256, (largest, self._size**2 * 3), dtype=torch.uint8, generator=generator)
        pictures = [row.numpy().tobytes() for row in noise]
        alone = torch.cat([self.logits([picture]) for picture in pictures])
        return tuple(
            size
            for size in BATCHES
            if size == 1 or bool((self.logits(pictures[:size]) - alone[:size]).abs().max() <= SAME_LOGITS)
        )


def _folded(block: nn.Module) -> nn.Sequential:
    """Return a block (convolution, BatchNorm, ReLU, …) with every BatchNorm folded into the convolution before it."""
    layers: list[nn.Module] = []
    for layer in block.children():
        if isinstance(layer, nn.BatchNorm2d):
            convolution = cast("nn.Conv2d", layers.pop())
            layers.append(Convolution(fuse_conv_bn_eval(convolution, layer)))
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


class Models:
    """Models by file, the ones used last kept in memory; a file that changed is read again."""

    def __init__(self, kept: int = MODELS_KEPT) -> None:
        self._kept = kept
        self._models: OrderedDict[tuple[Any, ...], Answerer] = OrderedDict()

    def get(self, path: Path) -> Answerer:
        """Return the model in `path`. Raises ModelRefused: 404 when there is none, 409 when it cannot answer."""
        try:
            status = path.stat()
            key = (str(path), status.st_ino, status.st_mtime_ns, status.st_size)
            if key not in self._models:
                self._models[key] = Answerer(load_model(path, CifarNet))
        except ModelFileRefused as error:
            raise ModelRefused(status=409, code="model_refused", detail=f"the model cannot answer: {error}") from None
        except OSError as error:
            raise ModelRefused(
                status=404,
                code="model_missing",
                detail=f"the model file {path.name} cannot be read ({error.strerror}); train a cifar run to get one",
            ) from None
        self._models.move_to_end(key)
        while len(self._models) > self._kept:
            self._models.popitem(last=False)
        return self._models[key]


@dataclass(frozen=True, slots=True)
class Job:
    """One decoded picture that waits for its answer."""

    number: int
    model: str
    picture: Picture


class Server:
    """Reads requests from a socket, decodes, answers. One thread does all but the decoding of large pictures."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._models = Models()
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large")
        self._large_waiting = 0
        self._decoded: queue.SimpleQueue[Job | tuple[int, Refused]] = queue.SimpleQueue()
        self._wake, self._wakened = socket.socketpair()

    def run(self) -> None:
        """Answer until the other side is gone. Raises EOFError or another OSError then."""
        while True:
            readable, _, _ = select([self._connection, self._wakened], [], [])
            jobs = self._large_jobs() if self._wakened in readable else []
            # What came while the last batch was computed is this batch.
            while len(jobs) < MAX_BATCH and select([self._connection], [], [], 0)[0]:
                jobs += self._accept(*wire.receive(self._connection))
            for model in dict.fromkeys(job.model for job in jobs):
                self._answer(Path(model), [job for job in jobs if job.model == model])

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
                    return [Job(request["id"], request["model"], decode(image, request["max_pixels"]))]
            if self._large_waiting == MAX_LARGE_WAITING:
                raise Unavailable(
                    status=503,
                    code="busy",
                    detail=f"{MAX_LARGE_WAITING} large pictures are waiting already; send smaller ones or try again",
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
            self._decoded.put(Job(request["id"], request["model"], picture))
        except Refused as refusal:
            self._decoded.put((request["id"], refusal))
        except BaseException:
            os._exit(1)  # a fault of the program: the web process tells whoever waits, and starts another child
        self._wake.send(b".")

    def _answer(self, path: Path, jobs: list[Job]) -> None:
        try:
            model = self._models.get(path)
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


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    warnings.simplefilter("ignore")  # Pillow warns about oddities of uploads; the answer says what matters
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    with suppress(EOFError, OSError):
        Server(socket.socket(fileno=int(sys.argv[1]))).run()
    os._exit(0)  # nobody is left to answer to, and a picture that is still being decoded is not worth finishing


if __name__ == "__main__":
    main()
