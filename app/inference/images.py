"""Turns uploaded bytes into pixels of the model's input, or refuses with an HTTP status.

No torch. The rules are in `trainer.contract.pictures`, the same as for training.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

from app.inference.errors import ImageRefused
from trainer.contract import pictures
from trainer.contract.pictures import Picture, PictureRefused


def open_picture(data: bytes, max_pixels: int) -> Image.Image:
    """Return the picture in `data` with only its header read.

    Raises ImageRefused: 415 for a format that is never accepted, 422 for anything else that is not a picture or has
    more than `max_pixels` pixels.
    """
    with _as_refusal():
        return pictures.open_picture(io.BytesIO(data), max_pixels)


def decode(image: Image.Image, max_pixels: int) -> Picture:
    """Return the pixels of an opened picture. Raises ImageRefused (422) if it is truncated, damaged or ambiguous."""
    with _as_refusal():
        return pictures.decode(image, max_pixels)


def read_picture(data: bytes, max_pixels: int) -> Picture:
    """Return the pixels of `data`; `open_picture` and `decode` in one step."""
    return decode(open_picture(data, max_pixels), max_pixels)


@contextmanager
def _as_refusal() -> Iterator[None]:
    try:
        yield
    except PictureRefused as refusal:
        status = 415 if refusal.code == "image_type_not_accepted" else 422
        raise ImageRefused(status=status, code=refusal.code, detail=str(refusal)) from None
