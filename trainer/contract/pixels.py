"""From a decoded picture to the 3x32x32 numbers of a classifier: one way for training and for answering.

Needs Pillow, and numpy where an array is asked for; no torch. Everything a file can say about how it wants to be seen
is settled here: orientation, transparency, bit depth, palette, colour model. Colour profiles are ignored.
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
"""What transparent pixels stand on: white."""

FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
"""What Pillow may open, by content (multi-picture JPEG included): formats whose header bounds the memory of decoding.

TIFF tiles, AVIF streams and the text variants of PPM do not keep to the size their header states; vector formats and
HEIC need foreign code."""

UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes each orientation (1 is upright)."""
SIXTEEN_BIT_MODES: Final = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})


class PixelsRefused(ValueError):
    """A picture was decoded but its pixels have no agreed meaning as a colour."""


def rgb(image: Image.Image) -> Image.Image:
    """Return `image` upright, opaque and in 8-bit RGB, at its own size.

    Raises PixelsRefused for pixels without a fixed range, OSError for a file that ends too early.
    """
    image.load()
    upright = UPRIGHT.get(orientation(image.info))
    # Before any resampling: a file tagged as rotated and the same file stored upright must give the same bytes.
    turned = image if upright is None else image.transpose(upright)
    if turned.mode in SIXTEEN_BIT_MODES:
        return _from_sixteen_bits(turned)
    if turned.mode == "F":
        raise PixelsRefused("floating-point pixels have no fixed range; save the picture with 8 or 16 bits per channel")
    if not turned.has_transparency_data:
        return _converted(turned, "RGB")
    rgba = _converted(turned, "RGBA")
    opaque = Image.new("RGB", rgba.size, BACKGROUND)
    opaque.paste(rgba, mask=rgba.getchannel("A"))
    return opaque


def resized(image: Image.Image) -> Image.Image:
    """Return `image` as the model sees it: `rgb`, squeezed to 32x32 (bilinear, antialiased; 32x32 stays as it is)."""
    return rgb(image).resize((INPUT_SIZE, INPUT_SIZE), Image.Resampling.BILINEAR)


def pixels(image: Image.Image) -> "NDArray[np.uint8]":
    """Return `image` as the model sees it, as a writable uint8 array of shape (32, 32, 3)."""
    import numpy as np

    return np.array(resized(image), dtype=np.uint8)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    try:
        return image if image.mode == mode else image.convert(mode)
    except ValueError as error:
        raise PixelsRefused(f"pixels of mode {image.mode} cannot be turned into {mode}: {error}") from None


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """Keep the upper 8 of 16 bits; Pillow's own conversion clips everything above 255 to white."""
    import numpy as np

    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise PixelsRefused(f"integer pixels from {low} to {high}; 0 to 65535 are understood")
    grey = (values >> 8).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = BACKGROUND[0]
    return Image.fromarray(grey).convert("RGB")
