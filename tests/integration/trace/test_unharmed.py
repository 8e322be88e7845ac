"""A traced script computes what it computes untraced, to the last bit."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.traced import Ranks, ranks


@pytest.fixture(scope="module")
def server() -> Iterator[Ranks]:
    with ranks() as started:
        yield started


def weights(server: Ranks, script: str, case: str, folder: Path, *, world_size: int, traced: bool) -> bytes:
    """Return the bytes of the parameters that rank 0 saved."""
    saved = folder / f"{'traced' if traced else 'plain'}.pt"
    codes = server.run(script, case, folder=folder / saved.stem, world_size=world_size, traced=traced, OUT=str(saved))
    assert codes == [0] * world_size, (folder / saved.stem / "rank0.out").read_text()[-2000:]
    state = torch.load(saved, weights_only=True)
    return b"".join(tensor.numpy().tobytes() for tensor in state.values())


@pytest.mark.torchrun
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("case", ["plain", "own_hook", "closure"])
def test_weights_are_equal_to_the_last_bit(server: Ranks, case: str, world_size: int, tmp_path: Path) -> None:
    plain = weights(server, "saving", case, tmp_path, world_size=world_size, traced=False)
    traced = weights(server, "saving", case, tmp_path, world_size=world_size, traced=True)
    assert traced == plain


@pytest.mark.torchrun
def test_comparison_would_notice_a_bit(server: Ranks, tmp_path: Path) -> None:
    one = weights(server, "saving", "plain", tmp_path, world_size=2, traced=False)
    other = weights(server, "saving", "plain_next_float", tmp_path, world_size=2, traced=True)
    assert one != other
