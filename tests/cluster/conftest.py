"""One cluster for all tests of this folder, which run only on request: `make test-cluster`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.rig import Cluster, rig
from tests.support.worker_lab import Lab, open_lab

WANTED = "DDP_AUDIT_TEST_CLUSTER"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all nodes but the blind one see."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Iterator[Cluster]:
    """A running Slurm; skipped unless requested; if requested, a failure to start is an error."""
    if not os.environ.get(WANTED):
        pytest.skip("needs a separate Slurm: make test-cluster")
    with rig(tmp_path_factory.mktemp("slurm"), shared) as running:
        yield running


@pytest.fixture
def lab(
    cluster: Cluster, shared: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """A lab whose runs are jobs of the cluster; nothing of it is left in the queue afterwards."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    given: dict[str, Any] = getattr(request, "param", {})
    settings = {"executor": "slurm", "slurm_poll_seconds": 0.5, "start_seconds": 90.0, **given}
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    with open_lab(shared / name, **settings) as opened:
        yield opened
        cluster.calm()
