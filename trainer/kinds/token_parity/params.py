"""Parameters, presets and stages of the kind `token-parity`."""

from typing import Final, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from trainer.contract.kinds import KindSpec, StagePlan
from trainer.contract.params import CommonParams
from trainer.tokens.corpus import POOL_SIZE
from trainer.tokens.plan import PlanShape

Variant = Literal[
    "correct",
    "mean_of_means",
    "rank_mean",
    "missing_world_size",
    "extra_world_size",
    "extra_accumulation_division",
    "missing_accumulation_division",
    "microbatch_denominator",
    "local_count_as_global",
    "padding_in_denominator",
    "padding_in_loss",
    "dropped_microbatch",
    "repeated_samples",
    "unsynchronised_step",
    "sync_on_wrong_microbatch",
    "extra_syncs",
    "stale_gradients",
    "unreduced_parameters",
]
SEVERAL: Final = frozenset(
    {
        "extra_accumulation_division",
        "missing_accumulation_division",
        "microbatch_denominator",
        "dropped_microbatch",
        "repeated_samples",
        "sync_on_wrong_microbatch",
        "extra_syncs",
    }
)
"""Mistakes that need several micro-batches."""


class TokenParityParams(CommonParams):
    """Parameters of a run; the defaults are the quick audit."""

    updates: int = Field(
        1,
        ge=1,
        le=100_000,
        title="Updates",
        description="1: audit one window. More: also train for that many windows and evaluate on the test sequences.",
    )
    accumulation: int = Field(
        2, ge=1, le=POOL_SIZE, title="Accumulation", description="Micro-batches per rank and window."
    )
    batch_size_per_rank: int = Field(
        8, ge=1, le=POOL_SIZE, title="Batch size per rank", description="Sequences per rank and micro-batch."
    )
    learning_rate: float = Field(0.1, gt=0, le=100, title="Learning rate", description="For plain SGD.")
    atol: float = Field(
        1e-6,
        ge=0,
        le=1,
        title="Absolute tolerance",
        description="A component is outside when |g - reference| > atol + rtol * |reference|.",
    )
    rtol: float = Field(1e-4, ge=0, le=1, title="Relative tolerance", description="See the absolute tolerance.")
    variant: Variant = Field(
        "correct",
        title="Variant",
        description="correct, or a deliberate mistake in the audited code, for which the verdict must be fail.",
    )

    @model_validator(mode="after")
    def _pool_holds_the_window(self) -> "TokenParityParams":
        needed = self.accumulation * self.batch_size_per_rank
        if needed > POOL_SIZE:
            reason = (
                f"a window needs accumulation x batch_size_per_rank = {self.accumulation} x {self.batch_size_per_rank} "
                f"= {needed} different sequences of a rank's pool, which has {POOL_SIZE}: with accumulation "
                f"{self.accumulation} at most {POOL_SIZE // self.accumulation}"
            )
            raise PydanticCustomError("pool", "{reason}", {"reason": reason, "field": "batch_size_per_rank"})
        return self

    @model_validator(mode="after")
    def _variant_can_be_shown(self) -> "TokenParityParams":
        if self.variant in SEVERAL and self.accumulation == 1:
            reason = f"the variant {self.variant} needs several micro-batches per window; set accumulation to 2 or more"
            raise PydanticCustomError("variant", "{reason}", {"reason": reason, "field": "variant"})
        return self

    @property
    def shape(self) -> PlanShape:
        """Everything that corpus and plan depend on."""
        return PlanShape(
            seed=self.seed,
            world_size=self.world_size,
            accumulation=self.accumulation,
            batch_size=self.batch_size_per_rank,
        )


def _stages(params: TokenParityParams) -> list[StagePlan]:
    package = "trainer.kinds.token_parity"
    train = StagePlan(name="train", title="Train and evaluate", entry=f"{package}.train:run", launcher="torchrun")
    return [
        StagePlan(name="prepare", title="Draw corpus and plan", entry=f"{package}.prepare:run", imports="nothing"),
        StagePlan(
            name="check-loss",
            title="Check the worked example",
            entry=f"{package}.check_loss:run",
            imports="nothing",
        ),
        StagePlan(
            name="reference", title="Reference gradient, one process", entry=f"{package}.reference:run", imports="torch"
        ),
        StagePlan(
            name="distributed",
            title="Gradients of all ranks",
            entry=f"{package}.distributed:run",
            launcher="torchrun",
        ),
        *([train] if params.updates > 1 else []),
        StagePlan(name="compare", title="Compare and decide", entry=f"{package}.compare:run", imports="torch"),
    ]


KIND = KindSpec(
    name="token-parity",
    title="Token-weighted gradients",
    description=(
        "Trains one small transformer on sequences of unequal length with an unequal number of tokens per rank, and "
        "compares every component of every rank's gradient with that of a single process on the same window."
    ),
    question="Does DDP's gradient equal the single-process gradient when the ranks hold unequal token counts?",
    params=TokenParityParams,
    presets={
        "quick": {},
        "full": {"updates": 100, "save_every": 50},
        "exercise": {"batch_size_per_rank": 2},
    },
    preset_titles={
        "quick": "Audit one window (about half a minute on two cores)",
        "full": "Audit, then 100 updates and an evaluation",
        "exercise": "Predict the result first: a small window, with its sums and counts in both formulas",
    },
    stages=_stages,
    headline_checks=("gradient_parity",),
    quick_start=(
        "The quick audit trains a small model on two ranks with unequal token counts and says whether its gradients "
        "equal the single-process ones. It takes less than a minute on two CPU cores."
    ),
    exercise="exercise",
)
