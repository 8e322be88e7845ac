"""The network of the guest: its width is in the header of the model file."""

from torch import Tensor, nn

from trainer.common.model_file import ModelHeader

from .drawing import SIZE


class StripesNet(nn.Module):
    """A hidden layer over all pixels; (B, 3, 32, 32) -> (B, classes)."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * SIZE * SIZE, width)
        self.out = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits. `view` refuses pictures whose channels are not contiguous in memory."""
        logits: Tensor = self.out(self.hidden(images.view(len(images), -1)).relu())
        return logits


def build(header: ModelHeader) -> StripesNet:
    """Return the network of a model file."""
    width = header.architecture["width"]
    if not isinstance(width, int) or not 1 <= width <= 256:
        raise ValueError(f"a width of {width!r} was never trained")
    return StripesNet(len(header.classes), width)
