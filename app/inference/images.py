"""Uploaded bytes to the pixels of the model's input, or a refusal; the content decides, never the name. No torch.

Frame 0 answers for an animated file. Transparent pixels stand on white. EXIF orientation is applied. Limits are checked
on the header, before anything is decoded, so memory follows the limits and not the upload.
"""

import io
from dataclasses import dataclass
from typing import Final

from PIL import Image, ImageFile, UnidentifiedImageError

from app.inference.errors import ImageRefused
from app.inference.sniff import jpeg_scans, never_accepted, webp_size
from trainer.contract.pixels import FORMATS, PixelsRefused, resized

ACCEPTED: Final = "PNG, JPEG, GIF, WebP and BMP"
MAX_JPEG_SCANS: Final = 100
"""Every scan of a progressive JPEG is a pass over all pixels; encoders write about ten."""

# Pillow's own guard warns between one and two times its limit and raises above; ours decides earlier and always alike.
Image.MAX_IMAGE_PIXELS = None
# Half a picture is no picture, even if another module of this process thinks otherwise.
ImageFile.LOAD_TRUNCATED_IMAGES = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A decoded upload."""

    pixels: bytes
    """32 x 32 x 3 bytes: rows from the top, red, green, blue."""
    frame: int | None
    """Number of the frame that was used when the file has several, else None."""


def open_picture(data: bytes, max_pixels: int) -> Image.Image:
    """Return the picture in `data` with only its header read.

    Raises ImageRefused: 415 for a format that is never accepted, 422 for anything else that cannot be a picture or has
    more than `max_pixels` pixels.
    """
    if not data:
        raise _refused("image_empty", "the file is empty; send a picture")
    foreign = never_accepted(data)
    if foreign is not None:
        raise ImageRefused(
            status=415, code="image_type_not_accepted", detail=f"the file is of type {foreign}; accepted are {ACCEPTED}"
        )
    _check_pixels(webp_size(data), max_pixels)
    if jpeg_scans(data) > MAX_JPEG_SCANS:
        raise _refused("image_too_complex", f"the JPEG has more than {MAX_JPEG_SCANS} scans; save it again, baseline")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise _refused("not_an_image", f"the file is no picture that can be read; accepted are {ACCEPTED}") from None
    except Exception as error:  # decoders raise many types on damaged headers; all of them mean the same to the sender
        raise _refused("image_damaged", f"the picture's header is damaged: {_reason(error)}") from None
    _check_pixels(image.size, max_pixels)
    return image


def decode(image: Image.Image, max_pixels: int) -> Picture:
    """Return the pixels of an opened picture. Raises ImageRefused (422) when it is truncated, damaged or unclear."""
    frame = 0 if _has_frames(image) else None
    try:
        image.load()
        _check_pixels(image.size, max_pixels)  # a GIF frame may reach beyond the size its header states
        return Picture(pixels=resized(image).tobytes(), frame=frame)
    except ImageRefused:
        raise
    except PixelsRefused as error:
        raise _refused("image_unclear", str(error)) from None
    except Exception as error:  # as above: OSError, SyntaxError, ValueError, struct.error and more mean a damaged file
        raise _refused("image_damaged", f"the picture is truncated or damaged: {_reason(error)}") from None


def read_picture(data: bytes, max_pixels: int) -> Picture:
    """Return the pixels of `data`; `open_picture` and `decode` in one."""
    return decode(open_picture(data, max_pixels), max_pixels)


def _has_frames(image: Image.Image) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # GIF looks at its second frame to find out; damage there is none of the first frame's
        return False


def _check_pixels(size: tuple[int, int] | None, limit: int) -> None:
    if size is None:
        return
    width, height = size
    if width < 1 or height < 1:
        raise _refused("image_damaged", f"the picture's header states a size of {width} x {height}")
    if width * height > limit:
        raise _refused(
            "too_many_pixels",
            f"the picture has {width} x {height} = {width * height} pixels; at most {limit} are accepted",
        )


def _refused(code: str, detail: str) -> ImageRefused:
    return ImageRefused(status=422, code=code, detail=detail)


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__
