"""Converts a decoded image to the 3x32x32 input of a classifier, in the same way for training and classification.

Needs Pillow, and numpy only for arrays; no torch. Handles everything in a file that affects its appearance:
orientation, transparency, bit depth, palette, colour model. Colour profiles are ignored.
"""

from typing import TYPE_CHECKING, Final

from PIL import Image

from trainer.contract.orientation import orientation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INPUT_SIZE: Final = 32
"""Height and width of the model's input."""
CHANNEL_MEANS: Final = (0.4914, 0.4822, 0.4465)
CHANNEL_DEVIATIONS: Final = (0.2470, 0.2435, 0.2616)
"""Per channel (red, green, blue), on pixels divided by 255: `(pixel / 255 - mean) / deviation`."""
BACKGROUND: Final = (255, 255, 255)
"""Background of transparent pixels: white."""

FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
"""Formats Pillow may open, by content (including multi-picture JPEG): their header bounds the memory of decoding.

TIFF tiles, AVIF streams and the text variants of PPM can exceed the size in their header; vector formats and HEIC need
additional libraries."""

UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that undoes each orientation (1 is upright)."""
SIXTEEN_BIT_MODES: Final = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})


class PixelsRefused(ValueError):
    """An image was decoded, but its pixels have no defined meaning as colours."""


def rgb(image: Image.Image) -> Image.Image:
    """Return `image` upright, opaque and in 8-bit RGB, at its original size.

    Raises PixelsRefused for pixels without a fixed range, OSError for a file that ends too early.
    """
    image.load()
    upright = UPRIGHT.get(orientation(image.info))
    # Before any resampling: a file tagged as rotated and the same file stored upright must give the same bytes.
    turned = image if upright is None else image.transpose(upright)
    if turned.mode in SIXTEEN_BIT_MODES:
        return _from_sixteen_bits(turned)
    if turned.mode == "F":
        raise PixelsRefused("floating-point pixels have no fixed range; save the image with 8 or 16 bits per channel")
    if not turned.has_transparency_data:
        return _converted(turned, "RGB")
    rgba = _converted(turned, "RGBA")
    opaque = Image.new("RGB", rgba.size, BACKGROUND)
    opaque.paste(rgba, mask=rgba.getchannel("A"))
    return opaque


def resized(image: Image.Image) -> Image.Image:
    """Return `image` as the model sees it: `rgb`, resized to 32x32 (bilinear, antialiased; 32x32 is not changed)."""
    return rgb(image).resize((INPUT_SIZE, INPUT_SIZE), Image.Resampling.BILINEAR)


def pixels(image: Image.Image) -> "NDArray[np.uint8]":
    """Return `image` as the model sees it, as a writable uint8 array of shape (32, 32, 3)."""
    import numpy as np

    return np.array(resized(image), dtype=np.uint8)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    try:
        return image if image.mode == mode else image.convert(mode)
    except ValueError as error:
        raise PixelsRefused(f"pixels of mode {image.mode} cannot be converted to {mode}: {error}") from None


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """Keep the upper 8 of 16 bits; Pillow's own conversion clips everything above 255 to white."""
    import numpy as np

    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise PixelsRefused(f"integer pixels from {low} to {high}; the supported range is 0 to 65535")
    grey = (values >> 8).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = BACKGROUND[0]
    return Image.fromarray(grey).convert("RGB")
