"""Training code of a user, outside of this product: found only by processes whose PYTHONPATH names the folder above."""

import time
from collections.abc import Sequence
from typing import Any

from trainer.targets.examples.causal_lm import Batch, CausalLanguageModel

print("an import that talks")  # noqa: T201  # what users' modules do


class Mine(CausalLanguageModel):
    """The loop of the shop."""

    name = "shop-loop"


class Waiting(CausalLanguageModel):
    """Rank 1 never comes to the reduction."""

    name = "shop-waits"

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        """Wait for ever on rank 1."""
        while ctx.rank == 1:
            time.sleep(1)
        super().accumulate(model, batches, ctx)


class Lacking:
    """No loop at all."""

    name = "shop-lacks"

    def build_model(self) -> None:
        """Return nothing."""


class Nameless(CausalLanguageModel):
    """Its name is a number."""

    name = 7  # type: ignore[assignment]


class Taken(CausalLanguageModel):
    """The name of a shipped example."""

    name = "zero"


twin = Mine()
