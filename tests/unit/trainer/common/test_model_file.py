"""Model files: written models are restored bit for bit, and nothing else is accepted as a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.common.model_file import ModelFileRefused, load_model, save_model, without_wrappers
from trainer.contract.pixels import CHANNEL_DEVIATIONS, CHANNEL_MEANS
from trainer.kinds.cifar.train.model import CifarNet, from_header

CLASSES = ("module", "cat", "dog")


@pytest.fixture
def network() -> CifarNet:
    torch.manual_seed(5)
    return CifarNet(len(CLASSES)).eval()


@pytest.fixture
def model_path(tmp_path: Path, network: CifarNet) -> Path:
    save_model(tmp_path / "model.pt", network, classes=CLASSES, seed=47)
    return tmp_path / "model.pt"


def altered(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    document = torch.load(path, weights_only=True)
    change(document)
    torch.save(document, path)
    return path


def logits(path: Path) -> Tensor:
    torch.manual_seed(11)
    with torch.inference_mode():
        answer: Tensor = load_model(path, from_header).network(torch.randn(2, 3, 32, 32))
    return answer


def test_saved_model_comes_back(model_path: Path, network: CifarNet) -> None:
    model = load_model(model_path, from_header)
    assert (model.classes, model.seed, model.input_size) == (CLASSES, 47, 32)
    assert (model.channel_means, model.channel_deviations) == (CHANNEL_MEANS, CHANNEL_DEVIATIONS)
    assert not model.network.training
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in model.network.state_dict().items())


def test_digest_is_of_the_file(model_path: Path, network: CifarNet, tmp_path: Path) -> None:
    import hashlib

    digest = save_model(tmp_path / "again.pt", network, classes=CLASSES, seed=47)
    assert digest == hashlib.sha256((tmp_path / "again.pt").read_bytes()).hexdigest()
    assert load_model(tmp_path / "again.pt", from_header).sha256 == digest


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module._orig_mod."]
)
def test_wrapper_prefixes_change_nothing(model_path: Path, prefix: str) -> None:
    expected = logits(model_path)
    altered(
        model_path,
        lambda document: document.update(weights={prefix + name: t for name, t in document["weights"].items()}),
    )
    assert torch.equal(logits(model_path), expected)


def test_wrapped_network_is_saved_loadable(model_path: Path, network: CifarNet, tmp_path: Path) -> None:
    save_model(tmp_path / "wrapped.pt", nn.DataParallel(network), classes=CLASSES, seed=47)
    assert torch.equal(logits(tmp_path / "wrapped.pt"), logits(model_path))


def test_part_called_module_is_kept() -> None:
    expected = {"module.weight": 1}
    assert without_wrappers({"module.weight": 1}, expected) == expected
    assert without_wrappers({"module._orig_mod.module.weight": 1}, expected) == expected
    assert without_wrappers({"mymodule.weight": 1}, {"my": 1}) == {"mymodule.weight": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["weights"].pop("head.bias"), ["1 missing: head.bias"]),
        (lambda d: d["weights"].update(extra=torch.zeros(1)), ["1 unexpected: extra"]),
        (lambda d: d["weights"].update({"head.bias": torch.zeros(4)}), ["head.bias", "(4,)", "(3,)"]),
        (lambda d: d["weights"].update({"head.bias": [0, 0, 0]}), ["not tensors", "head.bias"]),
        (lambda d: d["weights"]["head.bias"].fill_(float("nan")), ["non-finite", "head.bias"]),
        (lambda d: d.update(weights={f"module.{n}" if n > "c" else n: t for n, t in d["weights"].items()}),
         ["missing", "unexpected"]),
        (lambda d: d.update(weights={}), ["missing"]),
        (lambda d: d.update(weights=[1]), ["not a mapping"]),
        (lambda d: d.pop("classes"), ["lacks classes"]),
        (lambda d: d.update(classes=["a", "b"]), ["head.weight", "(3, 256)", "(2, 256)"]),
        (lambda d: d.update(classes=["a", "a", "b"]), ["different names"]),
        (lambda d: d.update(classes=[1, 2, 3]), ["list of names"]),
        (lambda d: d.update(input_size=64), ["input_size is 64"]),
        (lambda d: d.update(channel_deviations=[0.0, 0.2, 0.2]), ["channel_deviations", "above 0"]),
    ],
)  # fmt: skip
def test_other_contents_are_refused(
    model_path: Path, change: Callable[[dict[str, Any]], object], words: list[str]
) -> None:
    altered(model_path, change)
    with pytest.raises(ModelFileRefused) as refusal:
        load_model(model_path, from_header)
    assert [word for word in words if word not in str(refusal.value)] == []


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 not a zip", b"\x80\x02}q\x00.", b"hello" * 100])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.pt").write_bytes(data)
    with pytest.raises(ModelFileRefused, match=r"model\.pt"):
        load_model(tmp_path / "model.pt", from_header)


def test_pickled_code_never_runs(tmp_path: Path) -> None:
    torch.save({"weights": {}, "classes": Evil(str(tmp_path / "ran"))}, tmp_path / "model.pt")
    with pytest.raises(ModelFileRefused):
        load_model(tmp_path / "model.pt", from_header)
    assert not (tmp_path / "ran").exists()


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def test_truncated_model_is_refused(model_path: Path) -> None:
    model_path.write_bytes(model_path.read_bytes()[:-128])
    with pytest.raises(ModelFileRefused):
        load_model(model_path, from_header)


def test_bare_weights_are_refused(tmp_path: Path, network: CifarNet) -> None:
    torch.save(network.state_dict(), tmp_path / "model.pt")
    with pytest.raises(ModelFileRefused, match="lacks weights and classes"):
        load_model(tmp_path / "model.pt", from_header)
