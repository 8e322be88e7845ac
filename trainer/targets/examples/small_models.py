"""Small models of the shipped examples, in the form that users' own models have."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

IGNORED = -100


@dataclass(frozen=True, slots=True)
class CausalOutput:
    """What a causal language model returns, as in Hugging Face's transformers."""

    logits: Tensor
    """(batch, length, vocabulary)"""


class CausalTransformer(nn.Module):
    """A causal transformer without dropout; each position sees earlier ones of the same segment."""

    def __init__(self, vocabulary: int = 32, width: int = 32, length: int = 48) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=2, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids: Tensor, positions: Tensor, segments: Tensor) -> CausalOutput:
        """Map ids (batch, length) to logits; `segments` numbers the documents of a row, 0 for padding."""
        length = input_ids.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).triu(1)
        other = segments.unsqueeze(2) != segments.unsqueeze(1)
        hidden = self.tokens(input_ids) + self.positions(positions)
        hidden = self.layers(hidden, mask=(future | other).repeat_interleave(2, dim=0))
        return CausalOutput(logits=self.head(hidden))


class ImageNetwork(nn.Module):
    """A convolutional classifier of 3x16x16 images; GroupNorm, which does not mix the samples of a batch."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.GroupNorm(4, 32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, 3, 16, 16) to logits (batch, classes)."""
        logits: Tensor = self.layers(images)
        return logits
