"""The source `synthetic`: ten classes of coloured patterns, generated from the seed and learnable within a minute."""

from typing import Final

import numpy as np
import numpy.typing as npt

from trainer.contract.pixels import INPUT_SIZE
from trainer.kinds.cifar.data.sources import SYNTHETIC_CLASSES

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

CELLS: Final = 4
"""A pattern is a coarse grid of CELLS x CELLS colours."""
CONTRAST: Final = 45.0
"""Standard deviation of a pattern's colours, in grey levels."""
NOISE: Final = 30.0
"""Standard deviation of every pixel's noise, in grey levels."""
OWN_SHARE: Final = (0.5, 1.0)
"""An image mixes the pattern of its class, with a share from this range, with that of another class. Near one half it
is easily confused, so that the confusion matrix is not trivial."""
CHUNK: Final = 1000


def class_patterns(seed: int) -> npt.NDArray[np.float32]:
    """Return one pattern per class, shape (10, 32, 32, 3), around 0 in grey levels."""
    generator = np.random.default_rng([seed, 0])
    coarse = generator.normal(0.0, CONTRAST, (len(SYNTHETIC_CLASSES), CELLS, CELLS, 3)).astype(np.float32)
    repeat = INPUT_SIZE // CELLS
    return coarse.repeat(repeat, axis=1).repeat(repeat, axis=2)


def synthetic_images(seed: int, part: int, count: int) -> tuple[Bytes, Labels]:
    """Return `count` images (count, 32, 32, 3) and labels (count,), with the classes as balanced as `count` allows.

    `part` separates the draws of training (1) and test images (2).
    """
    patterns = class_patterns(seed)
    generator = np.random.default_rng([seed, part])
    labels = generator.permutation(np.arange(count, dtype=np.int64) % len(SYNTHETIC_CLASSES))
    images = np.empty((count, INPUT_SIZE, INPUT_SIZE, 3), dtype=np.uint8)
    for start in range(0, count, CHUNK):
        chosen = labels[start : start + CHUNK]
        others = (chosen + generator.integers(1, len(SYNTHETIC_CLASSES), len(chosen))) % len(SYNTHETIC_CLASSES)
        own = generator.uniform(*OWN_SHARE, (len(chosen), 1, 1, 1)).astype(np.float32)
        shown = own * patterns[chosen] + (1 - own) * patterns[others]
        noise = generator.standard_normal((len(chosen), INPUT_SIZE, INPUT_SIZE, 3), dtype=np.float32) * NOISE
        light = generator.normal(128.0, 20.0, (len(chosen), 1, 1, 1)).astype(np.float32)
        images[start : start + CHUNK] = np.clip(shown + noise + light, 0, 255).astype(np.uint8)
    return images, labels
