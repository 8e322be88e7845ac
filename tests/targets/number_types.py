"""Targets whose gradient is right in float64 and not in float32: by a mistake, and by rounding."""

from types import SimpleNamespace

import torch

from tests.targets.fixture_m import Scaled, Table

ONLY_IN_SINGLE = Scaled(
    "only_in_single", lambda s, loss, b, bs, n, c: loss * (1 if loss.dtype == torch.float32 else c.world_size) / n
)
"""Scales by the world size in float64 only, as an engine that chooses its reduction by the type."""
RIGHT = Table("right")
TARGETS = SimpleNamespace(only_in_single=ONLY_IN_SINGLE, right=RIGHT)
