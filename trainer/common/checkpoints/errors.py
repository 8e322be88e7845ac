"""Errors of checkpoints."""


class CheckpointError(Exception):
    """Base; every rank raises the same type with the same text."""

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field
        """The field that differs: `config.seed`, `world_size`, `data_lock`, `parameters`, … or empty."""


class CheckpointRefused(CheckpointError):
    """The checkpoint is complete but belongs to another training; `field` names the difference."""


class CheckpointDamaged(CheckpointError):
    """The checkpoint is damaged: a file is missing, truncated or changed."""


class CheckpointNotSaved(CheckpointError):
    """The save failed; earlier checkpoints are unchanged."""


class WindowOpen(CheckpointError):
    """A save was requested in the middle of an accumulation window, whose pending gradients would be lost."""
