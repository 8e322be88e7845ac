"""What can be wrong with a checkpoint."""


class CheckpointError(Exception):
    """Base; every rank raises the same type with the same text."""

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field
        """What does not fit: `config.seed`, `world_size`, `data_lock`, `parameters`, … or empty."""


class CheckpointRefused(CheckpointError):
    """The checkpoint is whole but belongs to another training; `field` says in what."""


class CheckpointDamaged(CheckpointError):
    """The checkpoint is not whole: a file is missing, short or changed."""


class CheckpointNotSaved(CheckpointError):
    """The save failed; earlier checkpoints are as they were."""


class WindowOpen(CheckpointError):
    """A save was asked for in the middle of an accumulation window, whose pending gradients no checkpoint holds."""
