"""The code that builds a classifier's network: that of the installed kinds, in order, never from the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from app.inference import server
from app.inference.errors import ModelRefused
from app.inference.images import read_picture
from app.inference.server import Models
from tests.support.pictures import encoded, photo
from trainer.common.model_file import Architecture, ModelHeader, save_model
from trainer.contract.kinds import Classifier

CLASSES = ("left", "right", "up")
BUILT: list[ModelHeader] = []


class Viewing(nn.Module):
    """A network that requires the default memory order of pixels, as `view` does."""

    def __init__(self, outputs: int, width: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * 32 * 32, width)
        self.out = nn.Linear(width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.out(self.hidden(images.view(len(images), -1)).relu())
        return result


class Breaking(Viewing):
    """A network that always fails."""

    def forward(self, images: Tensor) -> Tensor:
        raise RuntimeError(f"no pictures today, whatever their {images.ndim} dimensions")


def build(header: ModelHeader) -> nn.Module:
    BUILT.append(header)
    return Viewing(len(header.classes), int(header.architecture["width"]))


def build_breaking(header: ModelHeader) -> nn.Module:
    return Breaking(len(header.classes))


def build_nothing(_header: ModelHeader) -> nn.Module:
    raise ZeroDivisionError("no width at all")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that registers kinds by the function that builds their network."""

    def install(**networks: str) -> None:
        known = {
            kind: Classifier(network=f"{__name__}:{name}", model_file=lambda _: "") for kind, name in networks.items()
        }
        monkeypatch.setattr(server, "classifiers", lambda: known)

    return install


def written(path: Path, network: nn.Module, **architecture: Architecture) -> Path:
    save_model(path, network, classes=CLASSES, seed=1, architecture=architecture)
    return path


def test_network_is_built_from_the_header(installed: Callable[..., None], tmp_path: Path) -> None:
    installed(viewing="build")
    torch.manual_seed(5)
    model = Models().get(written(tmp_path / "model.pt", Viewing(3, 5), width=5), ("viewing",))
    assert (BUILT[-1].classes, dict(BUILT[-1].architecture)) == (CLASSES, {"width": 5})
    pictures = [read_picture(encoded(photo(seed=seed).rotate(40 * seed)), 10_000).pixels for seed in range(5)]
    alone = torch.tensor([model.probabilities([picture])[0] for picture in pictures])
    together = torch.tensor(model.probabilities(pictures))
    assert (alone - together).abs().max() < 1e-9
    assert len({tuple(row) for row in alone.tolist()}) == 5


def test_first_kind_that_fits_answers(installed: Callable[..., None], tmp_path: Path) -> None:
    installed(nothing="build_nothing", viewing="build")
    path = written(tmp_path / "model.pt", Viewing(3, 5), width=5)
    assert Models().get(path, ("nothing", "viewing")).classes == list(CLASSES)
    with pytest.raises(ModelRefused, match=r"header: no width at all") as refusal:
        Models().get(path, ("nothing",))
    assert refusal.value.status == 409
    other = written(tmp_path / "other.pt", Viewing(3, 6), width=5)
    with pytest.raises(ModelRefused, match=r"as a model of nothing: .*; as a model of viewing: the weights do not fit"):
        Models().get(other, ("nothing", "viewing"))
    with pytest.raises(ModelRefused, match="no installed kind trains a classifier"):
        Models().get(path, ())


@pytest.mark.parametrize(
    ("network", "classes", "told"),
    [("build_breaking", 3, "no pictures today"), ("build_short", 3, r"logits of shape \(1, 2\), not \(1, 3\)")],
)
def test_network_that_cannot_answer(
    installed: Callable[..., None], tmp_path: Path, network: str, classes: int, told: str
) -> None:
    installed(broken=network)
    outputs = 2 if network == "build_short" else classes
    with pytest.raises(ModelRefused, match=f"fails on images: {told}") as refusal:
        Models().get(written(tmp_path / "model.pt", Viewing(outputs)), ("broken",))
    assert refusal.value.status == 409


def build_short(_header: ModelHeader) -> nn.Module:
    return Viewing(2)


def test_file_never_chooses_the_code(installed: Callable[..., None], tmp_path: Path) -> None:
    installed(viewing="build")
    path = written(tmp_path / "model.pt", Viewing(3, 5), width=5, entry=f"{__name__}:build_breaking")
    document: dict[str, Any] = torch.load(path, weights_only=True)
    torch.save({**document, "kind": "other", "network": "os:abort"}, path)
    assert Models().get(path, ("viewing",)).classes == list(CLASSES)
    with pytest.raises(ModelRefused, match="header: 'other'"):  # a kind that is not installed builds nothing
        Models().get(path, ("other",))


@pytest.mark.parametrize(
    "choices", [{"width": [1]}, {"width": None}, {1: 2}, [("width", 1)], {str(n): n for n in range(65)}]
)
def test_header_holds_plain_values(installed: Callable[..., None], tmp_path: Path, choices: Any) -> None:
    installed(viewing="build")
    path = written(tmp_path / "model.pt", Viewing(3, 5), width=5)
    document: dict[str, Any] = torch.load(path, weights_only=True)
    torch.save({**document, "architecture": choices}, path)
    with pytest.raises(ModelRefused, match="architecture must be at most 64 names with plain values"):
        Models().get(path, ("viewing",))
