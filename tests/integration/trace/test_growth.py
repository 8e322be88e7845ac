"""What the probe holds and writes does not grow with the length of a training."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.traced import Ranks, ranks

EARLY, LATE = 470, 2510
"""Both inside an epoch and no powers of two."""
MOST_BYTES = 400_000
"""Of all files of a rank after so many updates: 63 epochs, each with a new loader."""


@pytest.fixture(scope="module")
def server() -> Iterator[Ranks]:
    with ranks() as started:
        yield started


def held(server: Ranks, case: str, folder: Path, *marks: int) -> dict[str, dict[str, int]]:
    """Return update -> what the probe of rank 0 held after it."""
    out = folder.parent / "sizes"
    codes = server.run("long", case, *map(str, marks), folder=folder, OUT=str(out))
    assert codes == [0, 0], (folder / "rank0.out").read_text()[-2000:]
    found: dict[str, dict[str, int]] = json.loads(Path(f"{out}.0").read_text())
    return found


@pytest.mark.torchrun
def test_thousands_of_updates_leave_nothing_behind(server: Ranks, tmp_path: Path) -> None:
    found = held(server, "steady", tmp_path / "trace", EARLY, LATE)
    early, late = found[str(EARLY)], found[str(LATE)]
    grown = {name: (early.get(name, 0), size) for name, size in late.items() if size > early.get(name, 0)}
    assert grown == {}
    assert early["Core objects"] == 1
    written = sum(path.stat().st_size for path in (tmp_path / "trace").glob("rank0.*"))
    assert 10_000 < written < MOST_BYTES


@pytest.mark.torchrun
def test_growth_would_be_seen(server: Ranks, tmp_path: Path) -> None:
    found = held(server, "leaking", tmp_path / "trace", 45, 55)
    assert found["55"]["Core.unseen"] > found["45"]["Core.unseen"]
