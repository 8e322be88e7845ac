"""The private torch operators in use still exist and behave as before, and the code works without them."""

import pytest
import torch

from trainer.common import torch_operators
from trainer.common.answering import LIBRARY_SHAPE
from trainer.common.torch_operators import mkldnn_available, pack_convolution, packed_convolution

NAMES = ("_reorder_convolution_weight", "_convolution_pointwise")

with_mkldnn = pytest.mark.skipif(not mkldnn_available(), reason="this torch was built without oneDNN")


@with_mkldnn
@pytest.mark.parametrize("name", NAMES)
def test_operator_still_exists(name: str) -> None:
    assert callable(getattr(torch.ops.mkldnn, name, None)), f"torch {torch.__version__} has no mkldnn.{name} any more"


@with_mkldnn
def test_packed_weight_gives_the_same_bits() -> None:
    torch.manual_seed(47)
    layer = torch.nn.Conv2d(3, 8, 3, padding=1)
    images = torch.randn(4, 3, 32, 32)
    packed = pack_convolution(layer.weight, LIBRARY_SHAPE)
    assert packed is not None
    with torch.inference_mode():
        found = packed_convolution(images, packed, layer.bias, LIBRARY_SHAPE)
        public = torch.mkldnn_convolution(images, layer.weight, layer.bias, *LIBRARY_SHAPE)
        other = torch.mkldnn_convolution(images, layer.weight + 1e-3, layer.bias, *LIBRARY_SHAPE)
    assert torch.equal(found, public)
    assert not torch.equal(found, other)


@pytest.mark.parametrize("gone", NAMES)
def test_nothing_is_packed_without_an_operator(monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    there = torch_operators._operator
    monkeypatch.setattr(torch_operators, "_operator", lambda name: None if name == gone else there(name))
    assert pack_convolution(torch.zeros(8, 3, 3, 3), LIBRARY_SHAPE) is None
