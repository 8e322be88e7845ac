"""Pictures for tests: valid ones in every mode, and hostile uploads with their expected status."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image


def photo(width: int = 48, height: int = 40, seed: int = 0) -> Image.Image:
    """Return an RGB picture with no symmetry: a gradient, a bright corner, some noise."""
    rows, columns = np.mgrid[0:height, 0:width]
    red, green = 255 * rows / height, 255 * columns / width
    noise = np.random.default_rng(seed).integers(0, 40, (height, width))
    values = np.stack([red, green, 60 + noise], axis=-1)
    values[: height // 4, : width // 3] = (250, 240, 30)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return `image` as a file of format `kind`."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation: int) -> Image.Exif:
    """Return EXIF data with this orientation."""
    data = Image.Exif()
    data[0x0112] = orientation
    return data


def frames(kind: str = "GIF", count: int = 3) -> bytes:
    """Return an animated file whose frames differ."""
    pictures = [photo(seed=number).rotate(90 * number) for number in range(count)]
    return encoded(pictures[0], kind, save_all=True, append_images=pictures[1:], duration=50)


def chunk(name: bytes, data: bytes) -> bytes:
    """Return a PNG chunk with its checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, color: int = 2) -> bytes:
    """Return a PNG that states this size and contains only these chunks; without any, a header-only file."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks)


def pixel_data(size: int) -> bytes:
    """Return a PNG data chunk that unpacks to `size` zero bytes."""
    return chunk(b"IDAT", zlib.compress(bytes(size), 1))


END = chunk(b"IEND", b"")
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200)
AVIF = b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(200)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32"><rect width="9" height="9"/></svg>'


def header_only_png(width: int, height: int) -> bytes:
    """Return a PNG of 66 bytes that states any size: header, an almost empty data chunk, end."""
    return png(width, height, chunk(b"IDAT", b"\x78\x9c\x03\0\0\0\0\x01\x00"), END)


def flipped(data: bytes, at: int) -> bytes:
    """Return `data` with one byte inverted."""
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def resized_jpeg_header(width: int, height: int) -> bytes:
    """Return a JPEG whose frame header states a size different from its data."""
    data = bytearray(encoded(photo(), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def scan_bomb(scans: int = 500) -> bytes:
    """Return a progressive JPEG that repeats its last scan."""
    data = encoded(photo(64, 64), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * scans + b"\xff\xd9"


def gif_with_large_frame() -> bytes:
    """Return a GIF of 1 x 1 whose first frame claims 65,535 x 65,535."""
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return screen + b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02L\x01\0;"


def large_webp_canvas() -> bytes:
    """Return an extended WebP that states 16,384 x 16,384 around a small picture."""
    body = encoded(photo(), "WEBP")[12:]
    size = (16383).to_bytes(3, "little")
    extended = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + size + size
    return b"RIFF" + struct.pack("<I", 4 + len(extended) + len(body)) + b"WEBP" + extended + body


def bmp(width: int, height: int, compression: int = 0) -> bytes:
    """Return a BMP header that states this size, with hardly any data behind it."""
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8 if compression else 24, compression, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 16, 0, 0, 54) + info + bytes(16)


def compressed_text(kind: bytes, size: int) -> bytes:
    """Return a PNG with a text or profile chunk that unpacks to `size` zero bytes."""
    rows = zlib.compress(b"".join(b"\0" + bytes(96) for _ in range(32)))
    bomb = chunk(kind, b"name\0\0" + zlib.compress(bytes(size), 1))
    return png(32, 32, bomb, chunk(b"IDAT", rows), END)


HOSTILE: dict[str, tuple[Callable[[], bytes], set[int]]] = {
    "empty": (lambda: b"", {422}),
    "one byte": (lambda: b"\xff", {422}),
    "text": (lambda: b"class: cat\n" * 50, {422}),
    "noise": (lambda: np.random.default_rng(1).bytes(5000), {422}),
    "zeros": (lambda: bytes(5000), {422}),
    "svg": (lambda: SVG, {415}),
    "svg behind xml": (lambda: b'\xef\xbb\xbf <?xml version="1.0"?>\n<!-- x -->' + SVG, {415}),
    "svg entity bomb": (lambda: b'<!DOCTYPE svg [<!ENTITY a "aaaa">]>' + SVG, {415}),
    "html": (lambda: b"<!doctype html><script>alert(1)</script>", {415}),
    "heic": (lambda: HEIC, {415}),
    "avif": (lambda: AVIF, {415}),
    "mp4": (lambda: b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + bytes(99), {415}),
    "pdf": (lambda: b"%PDF-1.7\n" + bytes(99), {415}),
    "zip": (lambda: b"PK\x03\x04" + bytes(99), {415}),
    "gzip bomb": (lambda: b"\x1f\x8b\x08\0" + zlib.compress(bytes(1 << 24)), {415}),
    "icon": (lambda: encoded(photo(), "ICO"), {415}),
    "psd": (lambda: b"8BPS\0\x01" + bytes(99), {415}),
    "tiff": (lambda: encoded(photo(), "TIFF"), {415}),
    "jpeg 2000": (lambda: b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(99), {415}),
    "jpeg xl": (lambda: b"\xff\x0a" + bytes(99), {415}),
    "pixmap": (lambda: encoded(photo(), "PPM"), {415}),
    "executable": (lambda: b"\x7fELF" + bytes(99), {415}),
    "png 81 megapixels": (lambda: header_only_png(9000, 9000), {422}),
    "png 100 megapixels": (lambda: header_only_png(10000, 10000), {422}),
    "png 169 megapixels": (lambda: header_only_png(13000, 13000), {422}),
    "png 196 megapixels": (lambda: header_only_png(14000, 14000), {422}),
    "png largest size": (lambda: header_only_png(2**31 - 1, 2**31 - 1), {422}),
    "png size zero": (lambda: header_only_png(0, 0), {422}),
    "png thin and long": (lambda: header_only_png(1, 2**31 - 1), {422}),
    "png thin, whole, within the pixels": (lambda: encoded(Image.new("1", (10_000_001, 1))), {422}),
    "png thin and long, whole": (lambda: encoded(Image.new("1", (1, 10_000_001))), {422}),
    "png header only": (lambda: png(32, 32), {422}),
    "png without pixels": (lambda: png(32, 32, END), {422}),
    "png just under the limit, no pixels": (lambda: header_only_png(4472, 4472), {422}),
    "png cut": (lambda: encoded(photo())[:-128], {422}),
    "png half": (lambda: encoded(photo(400, 400))[:20000], {422}),
    "png bad checksum": (lambda: flipped(encoded(photo()), 200), {422}),
    "png bit depth 3": (lambda: png(32, 32, END, depth=3), {422}),
    "png without palette": (lambda: png(32, 32, pixel_data(33 * 32), END, color=3), {200, 422}),
    "png text bomb": (lambda: compressed_text(b"zTXt", 1 << 26), {200, 422}),
    "png profile bomb": (lambda: compressed_text(b"iCCP", 1 << 26), {200, 422}),
    "png pixel bomb": (lambda: png(32, 32, pixel_data(1 << 26), END), {200, 422}),
    "png many chunks": (lambda: png(32, 32, chunk(b"teXt", b"") * 40_000, END), {422}),
    "png two headers": (lambda: png(32, 32, png(9000, 9000)[8:], chunk(b"IDAT", b"\x78\x9c"), END), {422}),
    "png four billion frames": (lambda: png(32, 32, chunk(b"acTL", b"\xff" * 8), pixel_data(97 * 32), END), {200, 422}),
    "jpeg cut": (lambda: encoded(photo(), "JPEG")[:-128], {422}),
    "jpeg half": (lambda: encoded(photo(400, 400), "JPEG", quality=95)[:20000], {422}),
    "jpeg start only": (lambda: b"\xff\xd8\xff\xe0\0\x10JFIF\0", {422}),
    "jpeg largest size": (lambda: resized_jpeg_header(65535, 65535), {422}),
    "jpeg larger than data": (lambda: resized_jpeg_header(4000, 4000), {200, 422}),
    "jpeg size zero": (lambda: resized_jpeg_header(0, 0), {422}),
    "jpeg scan bomb": (scan_bomb, {422}),
    "jpeg damaged exif": (lambda: encoded(photo(), "JPEG", exif=b"Exif\0\0MM\0*" + b"\xff" * 40), {200}),
    "gif header only": (lambda: b"GIF89a", {422}),
    "gif cut": (lambda: encoded(photo(200, 200), "GIF")[:-128], {200, 422}),
    "gif largest screen": (lambda: b"GIF89a" + b"\xff" * 4 + bytes(99), {422}),
    "gif frame beyond screen": (gif_with_large_frame, {422}),
    "webp cut": (lambda: encoded(photo(), "WEBP")[:-128], {422}),
    "webp large canvas": (large_webp_canvas, {422}),
    "webp header only": (lambda: b"RIFF\x20\0\0\0WEBPVP8 " + bytes(20), {422}),
    "webp extended header only": (lambda: b"RIFF\x16\0\0\0WEBPVP8X\n\0\0\0" + bytes(10), {422}),
    "bmp largest size": (lambda: bmp(2**31 - 1, 2**31 - 1), {422}),
    "bmp negative size": (lambda: bmp(-32, -32), {422}),
    "bmp without pixels": (lambda: bmp(32, 32), {422}),
    "bmp run-length bomb": (lambda: bmp(4400, 4400, compression=1), {422}),
}  # fmt: skip
"""Name -> (factory of the bytes, accepted statuses)."""
