"""The token model: a small causal transformer encoder of exactly 282,628 parameters."""

import hashlib

import torch
from torch import Tensor, nn

from trainer.tokens.corpus import EMBEDDINGS, LONGEST, SYMBOLS

WIDTH = 128
FEED_FORWARD = 256
HEADS = 4
LAYERS = 2


class TokenModel(nn.Module):
    """Predicts the next symbol at every position.

    Causal attention is enough to exclude padding: padding follows the last real position, which never attends to it.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.symbols = nn.Embedding(EMBEDDINGS, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        # Built individually: nn.TransformerEncoder would copy the first layer's weights to the others.
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=FEED_FORWARD, dropout=dropout, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map symbol ids [B, T] to logits [B, T, SYMBOLS]; T is at most LONGEST."""
        length = inputs.shape[1]
        hidden = self.symbols(inputs) + self.positions(torch.arange(length, device=inputs.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=inputs.device)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


def build_model(seed: int, *, dropout: float = 0.0) -> TokenModel:
    """Return the model with weights that depend only on `seed`; the global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TokenModel(dropout)


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of the names and values of all parameters, in the model's order."""
    state = hashlib.sha256()
    for name, parameter in model.named_parameters():
        state.update(name.encode())
        state.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()
