"""The token model: its size, and that padding and batch shape never reach the gradient."""

import torch

from trainer.common.window import gradients
from trainer.tokens.batches import IGNORED, loss_sum, make_batch, without_targets
from trainer.tokens.corpus import build_corpus
from trainer.tokens.model import TokenModel, build_model, weights_digest


def _gradient(model: TokenModel, width: int) -> torch.Tensor:
    batch = make_batch(build_corpus(47, 2).pools[0][:4], "cpu", width=width)
    model.zero_grad()
    (loss_sum(model, batch) / batch.tokens).backward()  # type: ignore[no-untyped-call]
    return torch.cat([value.flatten() for value in gradients(model).values()])


def test_model_has_282628_parameters() -> None:
    assert sum(parameter.numel() for parameter in TokenModel().parameters()) == 282_628


def test_weights_follow_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    first = weights_digest(build_model(47))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(1)
    assert weights_digest(build_model(47)) == first != weights_digest(build_model(48))


def test_padding_never_reaches_the_gradient() -> None:
    model = build_model(47).double()
    plain, padded = _gradient(model, 0), _gradient(model, 128)
    assert float((plain - padded).abs().max()) < 1e-12


def test_counted_padding_changes_the_gradient() -> None:
    model = build_model(47).double()
    batch = make_batch(build_corpus(47, 2).pools[0][:4], "cpu", width=128)
    counted = batch.targets.masked_fill(batch.targets == IGNORED, 0)
    (torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), counted.flatten())).backward()  # type: ignore[no-untyped-call]
    wrong = torch.cat([value.flatten() for value in gradients(model).values()])
    assert float((wrong - _gradient(model, 0)).abs().max()) > 1e-3


def test_model_never_looks_ahead() -> None:
    model = build_model(47)
    inputs = torch.randint(0, 4, (2, 20))
    changed = inputs.clone()
    changed[:, 10:] = 3 - changed[:, 10:]
    torch.testing.assert_close(model(inputs)[:, :10], model(changed)[:, :10])


def test_rank_without_targets_has_zero_gradient() -> None:
    model = build_model(47)
    batch = without_targets(make_batch(build_corpus(47, 2).pools[0][:2], "cpu"))
    loss_sum(model, batch).backward()  # type: ignore[no-untyped-call]
    assert batch.tokens == 0
    assert all(not gradient.any() for gradient in gradients(model).values())
