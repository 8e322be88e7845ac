"""Parameters, presets and stages of the kind `cifar`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from trainer.contract.kinds import Acquisition, Classifier, DataSource, KindSpec, StagePlan
from trainer.contract.params import CommonParams
from trainer.kinds.cifar.data.preflight import preflight
from trainer.kinds.cifar.data.sources import SOURCE_PATTERN, parse_source
from trainer.kinds.cifar.window import Refusal, window_refusal

Mode = Literal["every", "no_sync"]
MODES: tuple[Mode, ...] = ("every", "no_sync")


class CifarParams(CommonParams):
    """Parameters of a run; the defaults are the full recipe."""

    mode: Literal["every", "no_sync", "both"] = Field(
        "both",
        title="Mode",
        description="every: synchronise each micro-batch. no_sync: only the last of a window. both: train both modes.",
    )
    data: Annotated[str, Field(json_schema_extra={"pattern": SOURCE_PATTERN})] = Field(
        "synthetic",
        title="Data",
        description="synthetic (generated), cifar10, or folder:<name> for images in the data sets directory.",
    )
    epochs: int = Field(5, ge=1, le=10_000, title="Epochs", description="Passes over the training split.")
    batch_size: int = Field(50, ge=1, le=65_536, title="Batch size", description="Images per rank and micro-batch.")
    accum_steps: int = Field(
        4, ge=1, le=4096, title="Accumulation steps", description="Micro-batches per optimizer step (the window)."
    )
    learning_rate: float = Field(
        3e-3,
        gt=0,
        le=10,
        title="Learning rate",
        description="For AdamW, at the start of a cosine schedule over epochs.",
    )
    weight_decay: float = Field(1e-4, ge=0, le=10, title="Weight decay", description="For AdamW (decoupled).")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", title="Precision", description="auto: BF16 autocast if the device supports it, else FP32."
    )
    bucket_cap_mb: float = Field(
        25,
        ge=0.001,
        le=4096,
        title="Bucket cap (MiB)",
        description="DDP's bucket size; a smaller one means more buckets per synchronisation, but the same count.",
    )
    activation_checkpointing: bool = Field(
        False,
        title="Activation checkpointing",
        description="Recompute activations in the backward pass: less memory, more time, the same counts.",
    )
    train_size: int = Field(
        40_000, ge=1, le=1_000_000, title="Training images", description="Size of the training split."
    )
    validation_size: int = Field(
        10_000, ge=1, le=1_000_000, title="Validation images", description="Also taken from the training images."
    )
    test_size: int = Field(10_000, ge=1, le=1_000_000, title="Test images", description="Images scored at the end.")

    @field_validator("data")
    @classmethod
    def _known_source(cls, value: str) -> str:
        try:
            parse_source(value)
        except ValueError as error:
            raise PydanticCustomError("data_source", "{reason}", {"reason": str(error), "field": "data"}) from None
        return value

    @model_validator(mode="after")
    def _window_divides(self) -> "CifarParams":
        refusal: Refusal | None = window_refusal(
            train_size=self.train_size,
            batch_size=self.batch_size,
            world_size=self.world_size,
            accum_steps=self.accum_steps,
        )
        if refusal is not None:
            raise PydanticCustomError("window", "{reason}", {"reason": refusal.reason, "field": refusal.field})
        return self

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes this run trains, in their order."""
        return MODES if self.mode == "both" else (self.mode,)

    @property
    def samples_per_rank(self) -> int:
        """Training images one rank sees in an epoch."""
        return self.train_size // self.world_size

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one rank and epoch."""
        return self.samples_per_rank // self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch, in either mode."""
        return self.micro_batches // self.accum_steps

    def syncs_per_step(self, mode: Mode) -> int:
        """Gradient synchronisations an optimizer step takes in `mode`."""
        return self.accum_steps if mode == "every" else 1

    def syncs_per_epoch(self, mode: Mode) -> int:
        """Gradient synchronisations an epoch takes in `mode`."""
        return self.steps_per_epoch * self.syncs_per_step(mode)


def stage_of(mode: Mode) -> str:
    """Return the name of the stage that trains `mode`."""
    return "train-" + mode.replace("_", "-")


def _stages(params: CifarParams) -> list[StagePlan]:
    return [
        StagePlan(
            name="prepare",
            title="Prepare the images",
            entry="trainer.kinds.cifar.data.prepare:run",
            imports="nothing",
        ),
        *(
            StagePlan(
                name=stage_of(mode),
                title=f"Train, mode {mode}",
                entry="trainer.kinds.cifar.train.stage:run",
                launcher="torchrun",
                arguments={"mode": mode},
            )
            for mode in params.modes
        ),
        StagePlan(
            name="audit", title="Audit the counts", entry="trainer.kinds.cifar.audit.stage:run", imports="nothing"
        ),
    ]


def _model_file(params: Mapping[str, Any]) -> str:
    """Return the model used for classification: that of mode no_sync if a run trains both."""
    mode = params.get("mode", "both")
    return f"{'no_sync' if mode == 'both' else mode}/model.pt"


KIND = KindSpec(
    name="cifar",
    position=10,
    title="Gradient synchronisations of an image classifier",
    description=(
        "Trains a small convolutional network on 32x32 images with gradient accumulation, counts every gradient "
        "synchronisation with two independent methods, and shows which classes the model confuses."
    ),
    question="Does gradient accumulation synchronise once per optimizer step, or unnoticed once per micro-batch?",
    params=CifarParams,
    presets={
        "quick": {
            "data": "synthetic",
            "epochs": 2,
            "batch_size": 4,
            "train_size": 384,
            "validation_size": 100,
            "test_size": 200,
        },
        "full": {"data": "cifar10"},
    },
    preset_titles={
        "quick": "Generated images, both modes, less than half a minute on two CPU cores",
        "full": "CIFAR-10, five epochs, both modes",
    },
    stages=_stages,
    preflight=preflight,
    headline_checks=("gradient_syncs", "sync_ratio"),
    verifier="trainer.kinds.cifar.audit.verify",
    acquisition=Acquisition(
        module="trainer.kinds.cifar.data.acquire",
        sources=(
            DataSource(name="synthetic", title="generated images"),
            DataSource(name="cifar10", title="CIFAR-10", fetched=True),
            DataSource(name="folder:NAME", title="images in the data sets directory"),
        ),
    ),
    classifier=Classifier(
        network="trainer.kinds.cifar.train.model:from_header",
        model_file=_model_file,
        label=lambda params: f"{params.get('mode')}, {params.get('data')}",
    ),
)
