"""Input images of the network: seeded splits, crops and flips, normalisation, digests of draws."""

from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.contract.paths import RunPaths
from trainer.contract.pixels import CHANNEL_DEVIATIONS, CHANNEL_MEANS
from trainer.kinds.cifar.data.draws import DrawLog, EpochPlan
from trainer.kinds.cifar.data.images import ImageSplit, Views, cropped, normalised
from trainer.kinds.cifar.data.split import PreparedData, draw_ids
from trainer.kinds.cifar.data.synthetic import synthetic_images
from trainer.kinds.cifar.train.setup import measure_memory


def images(count: int = 6) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8))


def test_crops_match_plain_slicing() -> None:
    batch = images(40)
    views = Views.draw(40, torch.Generator().manual_seed(2))
    found = cropped(batch, views)
    for place, image in enumerate(batch.numpy()):
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
        top, left = int(views.top[place]), int(views.left[place])
        window = padded[top : top + 32, left : left + 32]
        expected = window[:, ::-1] if views.flip[place] else window
        assert np.array_equal(found[place].numpy(), expected)


def test_views_cover_all_corners() -> None:
    views = Views.draw(4000, torch.Generator().manual_seed(2))
    assert set(views.top.tolist()) == set(views.left.tolist()) == set(range(9))
    assert 0.45 < views.flip.double().mean() < 0.55


def test_normalised_by_channel() -> None:
    batch = images(3)
    found = normalised(batch)
    assert found.shape == (3, 3, 32, 32)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for channel in range(3):
        plain = (batch[..., channel].double() / 255 - CHANNEL_MEANS[channel]) / CHANNEL_DEVIATIONS[channel]
        assert torch.allclose(found[:, channel].double(), plain, atol=1e-6)


def test_split_serves_any_order() -> None:
    stored = images(5).numpy()
    split = ImageSplit(stored, np.arange(5), torch.device("cpu"))
    pixels, labels = split.raw([4, 0])
    assert labels.tolist() == [4, 0]
    assert np.array_equal(pixels.numpy(), stored[[4, 0]])


def test_splits_never_share_images() -> None:
    ids = draw_ids(seed=47, train=400, validation=100, test=50, train_available=500, test_available=60)
    assert sorted([*ids.train, *ids.validation]) == list(range(500))
    assert len(set(ids.test)) == 50
    again = draw_ids(seed=47, train=400, validation=100, test=50, train_available=500, test_available=60)
    other = draw_ids(seed=48, train=400, validation=100, test=50, train_available=500, test_available=60)
    assert ids.train.tolist() == again.train.tolist() != other.train.tolist()


def test_split_larger_than_source_refused() -> None:
    with pytest.raises(ValueError, match="400 \\+ 101 training"):
        draw_ids(seed=47, train=400, validation=101, test=50, train_available=500, test_available=60)


def test_card_digest_sees_one_pixel(tmp_path: Path) -> None:
    digests = []
    for change in (0, 1):
        paths = RunPaths(tmp_path / str(change))
        paths.root.mkdir()
        prepared = PreparedData(paths)
        for split in ("train", "validation", "test"):
            pixels, labels = synthetic_images(5, 1, 20)
            pixels[0, 0, 0, 0] ^= change
            prepared.write(split, pixels, labels)
        card = prepared.seal("synthetic", tuple("abcdefghij"))
        assert card == prepared.card()
        assert card.counts["test"] == [2] * 10
        digests.append(card.digest)
    assert digests[0] != digests[1]


def test_synthetic_images_follow_seed() -> None:
    first, labels = synthetic_images(47, 1, 30)
    again, _ = synthetic_images(47, 1, 30)
    other, _ = synthetic_images(48, 1, 30)
    held_out, _ = synthetic_images(47, 2, 30)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, held_out)
    assert np.bincount(labels).tolist() == [3] * 10


def test_epochs_reshuffle_all_ids() -> None:
    plans = [EpochPlan(train_size=22, rank=rank, world_size=2, seed=47) for rank in (0, 1)]
    epochs = [[plan.ids(epoch).tolist() for plan in plans] for epoch in range(3)]
    assert all(sorted(left + right) == list(range(22)) for left, right in epochs)
    assert len({tuple(left) for left, _ in epochs}) == 3
    assert plans[0].ids(1).tolist() == epochs[1][0]


def test_draw_log_continues_where_it_stopped() -> None:
    whole, first = DrawLog(), DrawLog()
    for number in range(4):
        whole.add(np.arange(number, number + 3), bytes([number]))
    for number in range(2):
        first.add(np.arange(number, number + 3), bytes([number]))
    second = DrawLog(**first.as_json())
    for number in range(2, 4):
        second.add(np.arange(number, number + 3), bytes([number]))
    assert second.as_json() == whole.as_json()
    second.add(np.arange(3), b"")
    assert second.ids != whole.ids


def test_checkpointing_saves_memory() -> None:
    from trainer.kinds.cifar.train.model import CifarNet

    network = CifarNet().to(memory_format=torch.channels_last)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    memory = measure_memory(network, 4, "fp32")
    assert 0 < memory.checkpointed < memory.plain
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
