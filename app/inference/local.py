"""Classification without a service: the same child process, started for a few files and ended afterwards."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from app.inference.client import Classifier, Prediction
from app.inference.errors import ImageRefused, check_bytes
from trainer.contract.kinds import classifiers


def classify_files(model: Path, images: Sequence[Path], *, max_pixels: int, max_bytes: int) -> list[Prediction]:
    """Return one prediction per image file, in order; the caller's process never imports torch.

    `Prediction.document(run_id)` gives the JSON; a model given as a file has run_id None. Raises a `Refused` of
    `app.inference.errors` for the first file that cannot be answered, its name put before the reason (`image_not_found`
    for a missing file), or for an unusable model.
    """
    return asyncio.run(_classify(model.absolute(), images, max_pixels, max_bytes))


async def _classify(model: Path, images: Sequence[Path], max_pixels: int, max_bytes: int) -> list[Prediction]:
    classifier = Classifier(max_pixels=max_pixels, max_bytes=max_bytes)
    try:
        return [await _classify_one(classifier, model, image, max_bytes) for image in images]
    finally:
        await classifier.close()


async def _classify_one(classifier: Classifier, model: Path, image: Path, max_bytes: int) -> Prediction:
    try:
        return await classifier.classify(_read(image, max_bytes), model, list(classifiers()))
    except ImageRefused as refusal:
        refusal.detail = f"{image}: {refusal.detail}"
        raise


def _read(image: Path, max_bytes: int) -> bytes:
    try:
        with image.open("rb") as handle:
            data = handle.read(max_bytes + 1)
    except OSError as error:
        raise ImageRefused(status=404, code="image_not_found", detail=f"cannot be read ({error.strerror})") from None
    check_bytes(len(data), max_bytes)
    return data
