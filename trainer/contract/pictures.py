"""Safe opening of image files for training and classification: by content, never by name. No torch.

Of a file with several frames, frame 0 is used. Limits are checked on the header before anything is decoded, so memory
is bounded by the limits and not by the file.
"""

from dataclasses import dataclass
from typing import IO, Final

from PIL import Image, ImageFile, UnidentifiedImageError

from trainer.contract.pixels import FORMATS, PixelsRefused, resized
from trainer.contract.sniff import START_BYTES, jpeg_scans, never_accepted, webp_size

ACCEPTED: Final = "PNG, JPEG, GIF, WebP and BMP"
MAX_SIDE: Final = 65_535
"""The maximum of JPEG and GIF. Resizing a longer line takes far more memory than its pixels."""
MAX_JPEG_SCANS: Final = 100
"""Every scan of a progressive JPEG is a pass over all pixels; encoders write about ten."""
JPEG_FORMATS: Final = frozenset({"JPEG", "MPO"})

# Pillow's own limit only warns up to twice its value and raises above; ours is checked earlier and is consistent.
Image.MAX_IMAGE_PIXELS = None
# A truncated image is an error, even if another module of this process has changed the setting.
ImageFile.LOAD_TRUNCATED_IMAGES = False


class PictureRefused(ValueError):
    """A file is not a usable image; `code` says why in a word, the text in a sentence."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A decoded image."""

    pixels: bytes
    """32 x 32 x 3 bytes: rows from the top, red, green, blue."""
    frame: int | None
    """Number of the frame that was used if the file has several, else None."""


def open_picture(file: IO[bytes], max_pixels: int) -> Image.Image:
    """Return the image in `file` with only its header read; the file must stay open until it is decoded.

    Raises PictureRefused: `image_type_not_accepted` for a format that is never accepted, `too_many_pixels` for more
    than `max_pixels` pixels or a side over MAX_SIDE, and other codes for files that are not an image.
    """
    start = file.read(START_BYTES)
    if not start:
        raise PictureRefused("image_empty", "the file is empty, so it is not an image")
    foreign = never_accepted(start)
    if foreign is not None:
        raise PictureRefused("image_type_not_accepted", f"the file is of type {foreign}; accepted are {ACCEPTED}")
    stated = webp_size(start)  # Pillow allocates the whole canvas of a WebP when it opens one
    if stated is not None:
        _check_size(stated, max_pixels)
    file.seek(0)
    try:
        image = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        text = f"the file is not a readable image; accepted are {ACCEPTED}"
        raise PictureRefused("not_an_image", text) from None
    except (
        Exception
    ) as error:  # decoders raise many exception types for damaged headers; all of them mean the same to the sender
        raise PictureRefused("image_damaged", f"the picture's header is damaged: {_reason(error)}") from None
    _check_size(image.size, max_pixels)
    return image


def decode(image: Image.Image, max_pixels: int) -> Picture:
    """Return the pixels of an opened image.

    Raises PictureRefused if it is truncated, damaged or unclear, or has too many scans.
    """
    _check_scans(image)
    frame = 0 if _has_frames(image) else None
    try:
        image.load()
        _check_size(image.size, max_pixels)  # a GIF frame may be larger than the size in its header
        return Picture(pixels=resized(image).tobytes(), frame=frame)
    except PictureRefused:
        raise
    except PixelsRefused as error:
        raise PictureRefused("image_unclear", str(error)) from None
    except Exception as error:  # as above: OSError, SyntaxError, ValueError, struct.error and more mean a damaged file
        raise PictureRefused("image_damaged", f"the picture is truncated or damaged: {_reason(error)}") from None


def read_picture(file: IO[bytes], max_pixels: int) -> Picture:
    """Return the pixels of `file`; `open_picture` and `decode` in one."""
    return decode(open_picture(file, max_pixels), max_pixels)


def _check_size(size: tuple[int, int], limit: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise PictureRefused("image_damaged", f"the picture's header states a size of {width} x {height}")
    if width * height > limit:
        text = f"the picture has {width} x {height} = {width * height} pixels; at most {limit} are accepted"
        raise PictureRefused("too_many_pixels", text)
    if max(size) > MAX_SIDE:
        text = f"the picture has {width} x {height} pixels; a side of at most {MAX_SIDE} is accepted"
        raise PictureRefused("too_many_pixels", text)


def _check_scans(image: Image.Image) -> None:
    file = getattr(image, "fp", None)
    if image.format not in JPEG_FORMATS or file is None:
        return
    file.seek(0)
    if jpeg_scans(file.read()) > MAX_JPEG_SCANS:
        text = f"the JPEG has more than {MAX_JPEG_SCANS} scans; save it again, baseline"
        raise PictureRefused("image_too_complex", text)


def _has_frames(image: Image.Image) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # for GIF, this reads the second frame; damage there does not affect the first one
        return False


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__
