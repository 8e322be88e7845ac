"""The prepared model: the numbers of the plain one, independent of the rest of the batch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from app.inference.errors import ModelRefused
from app.inference.images import read_picture
from app.inference.server import Models
from tests.support.inference import CLASSES, network
from tests.support.pictures import encoded, photo
from trainer.common import answering
from trainer.common.answering import Answerer
from trainer.common.model_file import load_model, save_model
from trainer.contract.pixels import CHANNEL_DEVIATIONS, CHANNEL_MEANS
from trainer.kinds.cifar.train.model import from_header

KINDS = ("cifar",)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.pt"
    save_model(path, network(), classes=CLASSES, seed=47)
    return path


@pytest.fixture
def answerer(model_path: Path) -> Answerer:
    return Answerer(load_model(model_path, from_header))


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    return [read_picture(encoded(photo(40 + n, 50, seed=n).rotate(37 * n)), 10_000).pixels for n in range(23)]


def plain_probabilities(model_path: Path, pictures: list[bytes]) -> torch.Tensor:
    """Return the output of evaluation during training: the plain network on normalised pixels, in FP32."""
    net = load_model(model_path, from_header).network
    flat = torch.frombuffer(bytearray(b"".join(pictures)), dtype=torch.uint8)
    images = flat.view(-1, 32, 32, 3).permute(0, 3, 1, 2).float().div(255)
    means, deviations = (torch.tensor(values).view(1, 3, 1, 1) for values in (CHANNEL_MEANS, CHANNEL_DEVIATIONS))
    with torch.inference_mode():
        probabilities: torch.Tensor = net((images - means) / deviations).double().softmax(1)
    return probabilities


def test_same_numbers_as_plain_network(answerer: Answerer, model_path: Path, pictures: list[bytes]) -> None:
    found = torch.tensor(answerer.probabilities(pictures), dtype=torch.float64)
    expected = plain_probabilities(model_path, pictures)
    assert (found - expected).abs().max() < 1e-6
    assert (found.sum(1) - 1).abs().max() < 1e-12
    assert expected.max(1).values.mean() > 0.3  # far from uniform, where every mistake would look small


def test_training_mode_would_differ(model_path: Path, pictures: list[bytes]) -> None:
    expected = plain_probabilities(model_path, pictures)
    net = load_model(model_path, from_header).network.train()
    flat = torch.frombuffer(bytearray(b"".join(pictures)), dtype=torch.uint8)
    with torch.no_grad():
        found = net(flat.view(-1, 32, 32, 3).permute(0, 3, 1, 2).float().div(255)).softmax(1)
    assert (found - expected).abs().max() > 1e-3


def test_alone_twice_and_in_batch(answerer: Answerer, pictures: list[bytes]) -> None:
    alone = torch.cat([answerer.logits([picture]) for picture in pictures[:8]])
    again = torch.cat([answerer.logits([picture]) for picture in pictures[:8]])
    together = answerer.logits(pictures[:8])
    assert alone.abs().max() > 3
    assert torch.equal(alone, again)
    assert (alone - together).abs().max() < 1e-6
    everything = torch.tensor(answerer.probabilities(pictures))
    for count in (1, 2, 3, 5, 16):
        some = torch.tensor(answerer.probabilities(pictures[:count]))
        assert (some - everything[:count]).abs().max() < 1e-9


def test_hundred_requests_change_nothing(answerer: Answerer, pictures: list[bytes]) -> None:
    before = {name: tensor.clone() for name, tensor in answerer._network.state_dict().items()}
    first = answerer.probabilities(pictures[:1])
    for number in range(100):
        answerer.probabilities([pictures[number % len(pictures)]])
    assert answerer.probabilities(pictures[:1]) == first
    assert all(torch.equal(tensor, before[name]) for name, tensor in answerer._network.state_dict().items())
    assert not answerer._network.training


def test_inexact_batches_are_avoided(model_path: Path, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Answerer.logits

    def drifting(self: Answerer, batch: list[bytes]) -> torch.Tensor:
        return exact(self, batch) + (1e-8 if len(batch) > 2 else 0)

    monkeypatch.setattr(Answerer, "logits", drifting)
    answerer = Answerer(load_model(model_path, from_header))
    assert answerer.batches == (2, 1)
    assert len(answerer.probabilities(pictures)) == len(pictures)


@pytest.mark.parametrize(("name", "value"), [("pack_convolution", lambda *_: None), ("MKLDNN", False)])
def test_other_paths_same_numbers(
    model_path: Path, pictures: list[bytes], monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    monkeypatch.setattr(answering, name, value)
    answerer = Answerer(load_model(model_path, from_header))
    found = torch.tensor(answerer.probabilities(pictures), dtype=torch.float64)
    assert (found - plain_probabilities(model_path, pictures)).abs().max() < 1e-6


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_prefix_order_same_logits(
    answerer: Answerer, model_path: Path, tmp_path: Path, pictures: list[bytes], prefix: str
) -> None:
    document = torch.load(model_path, weights_only=True)
    document["weights"] = {prefix + name: tensor for name, tensor in document["weights"].items()}
    document["classes"] = ["module", *document["classes"][1:]]
    torch.save(document, tmp_path / "model.pt")
    wrapped = Answerer(load_model(tmp_path / "model.pt", from_header))
    assert wrapped.classes[0] == "module"
    assert torch.equal(wrapped.logits(pictures[:4]), answerer.logits(pictures[:4]))


def test_models_are_kept_and_renewed(model_path: Path, tmp_path: Path) -> None:
    models, path = Models(kept=1), tmp_path / "model.pt"
    path.write_bytes(model_path.read_bytes())
    first = models.get(path, KINDS)
    assert models.get(path, KINDS) is first
    save_model(path, network(1), classes=CLASSES, seed=48)
    assert models.get(path, KINDS).sha256 != first.sha256
    models.get(model_path, KINDS)
    assert len(models._models) == 1


def test_missing_and_foreign_models(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="train a run of kind cifar") as missing:
        Models().get(tmp_path / "model.pt", KINDS)
    torch.save({"weights": {"a": torch.zeros(1)}, "classes": ["x", "y"]}, tmp_path / "other.pt")
    with pytest.raises(ModelRefused, match=r"missing: blocks\.0\.0\.weight") as foreign:
        Models().get(tmp_path / "other.pt", KINDS)
    assert (missing.value.status, foreign.value.status) == (404, 409)
