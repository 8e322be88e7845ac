"""Launch options of runs on a cluster: what is refused, by which field, and what the live workers know."""

from typing import Any

import pytest

from app.clock import now
from app.runs.cluster import check_cluster, check_options
from app.runs.errors import Refused
from app.runs.models import WorkerRow
from app.runs.requests import check_launch
from app.settings import Settings
from trainer.contract.params import CommonParams
from trainer.contract.placement import Ask, Offer, Place, Unplaceable, gpus_in, place, shape
from trainer.contract.timelimit import seconds_of


def params(ranks: int = 4, device: str = "auto") -> CommonParams:
    return CommonParams(world_size=ranks, device=device)  # type: ignore[arg-type]


def problems(launch: dict[str, Any], ranks: int = 4) -> dict[str, str]:
    try:
        check_options(launch, params(ranks))
    except Refused as refusal:
        return {error.field: error.message for error in refusal.errors}
    return {}


@pytest.mark.parametrize(
    "launch",
    [
        {},
        {"nodes": 2},
        {"nodes": 4, "ranks_per_node": 1},
        {"ranks_per_node": 2},
        {"partition": "a,b", "account": "lab@site", "time_limit": 90, "gres": "gpu:a100:2", "cpus_per_rank": 8},
        {"time_limit": "1-12:00:00"},
    ],
)
def test_options_that_work(launch: dict[str, Any]) -> None:
    assert problems(launch) == {}


@pytest.mark.parametrize(
    ("launch", "field", "words"),
    [
        ({"nodes": 3}, "launch.nodes", "nodes can be 1, 2, 4"),
        ({"nodes": 2, "ranks_per_node": 3}, "launch.ranks_per_node", "2 nodes x 3 ranks on each are 6 ranks"),
        ({"ranks_per_node": 8}, "launch.ranks_per_node", "8 ranks, and world_size is 4"),
        ({"nodes": 0}, "launch.nodes", "whole number from 1"),
        ({"nodes": True}, "launch.nodes", "whole number"),
        ({"nodes": "2"}, "launch.nodes", "given '2'"),
        ({"partition": "x; rm -rf /"}, "launch.partition", "must be a name"),
        ({"partition": "--wrap=x"}, "launch.partition", "must be a name"),
        ({"account": ""}, "launch.account", "must be a name"),
        ({"gres": "gpu 2"}, "launch.gres", "such as gpu:2"),
        ({"time_limit": "soon"}, "launch.time_limit", "1:30:00"),
        ({"time_limit": 0}, "launch.time_limit", "minutes"),
        ({"time_limit": 1.5}, "launch.time_limit", "minutes"),
        ({"endpoint": "a:1"}, "launch.endpoint", "unknown to the Slurm executor"),
    ],
)
def test_options_that_do_not_work(launch: dict[str, Any], field: str, words: str) -> None:
    found = problems(launch)
    assert list(found) == [field]
    assert words in found[field]


def test_executor_decides_which_options_there_are(tmp_path: Any) -> None:
    slurm, local = (Settings(data_dir=tmp_path, executor=name) for name in ("slurm", "local"))
    check_launch({"nodes": 2}, params(), slurm)
    with pytest.raises(Refused, match="the local executor has one node"):
        check_launch({"nodes": 2}, params(), local)
    check_launch({"endpoint": "127.0.0.1:0"}, params(), local)


def worker(*partitions: dict[str, Any]) -> WorkerRow:
    document = {"scheduler": "slurm", "partitions": list(partitions)}
    return WorkerRow(
        id="w", pid=1, pid_start=1, boot_id="", host="", started_at=now(), heartbeat_at=now(), devices=document
    )


MAIN = {"name": "main", "default": True, "nodes": 2, "max_seconds": 3600}
LONG = {"name": "long", "default": False, "nodes": 8, "max_seconds": None}


@pytest.mark.parametrize(
    ("launch", "field"),
    [
        ({"nodes": 4}, "launch.nodes"),
        ({"partition": "nowhere"}, "launch.partition"),
        ({"time_limit": 61}, "launch.time_limit"),
        ({"nodes": 4, "partition": "long"}, ""),
        ({"time_limit": 61, "partition": "long"}, ""),
        ({"time_limit": 60}, ""),
        ({"nodes": 4, "partition": "main,long"}, ""),
    ],
)
def test_partitions_that_a_worker_knows(launch: dict[str, Any], field: str) -> None:
    if not field:
        check_cluster(launch, params(), [worker(MAIN, LONG)])
        return
    with pytest.raises(Refused) as refused:
        check_cluster(launch, params(), [worker(MAIN, LONG)])
    assert [error.field for error in refused.value.errors] == [field]
    check_cluster(launch, params(), [])  # nobody knows better: Slurm decides
    check_cluster(launch, params(), [worker()])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("2-0", 172_800),
        ("1-00:00:30", 86_430),
        ("1-02:03", 93_780),
        ("UNLIMITED", None),
        ("0", None),
        ("", None),
        ("1:2:3:4", None),
        ("-1", None),
        ("1.5", None),
    ],
)
def test_time_limits(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [("gpu:2", 2), ("gpu", 1), ("gpu:a100:4", 4), ("license:x,gpu:1", 1), ("", 0), ("nic:2", 0), ("gpu:a100", 1)],
)
def test_gpus_in_resources(resources: str, gpus: int) -> None:
    assert gpus_in(resources) == gpus


def test_shape_follows_from_what_is_given() -> None:
    assert shape({}, 4) == (1, 4)
    assert shape({"nodes": 2}, 4) == (2, 2)
    assert shape({"ranks_per_node": 1}, 4) == (4, 1)


def test_gpus_are_those_that_the_request_asks_for() -> None:
    nodes = Offer(scheduler="slurm")
    ask = {"device": "cuda", "world_size": 4}
    assert place(Ask.of(ask, {"nodes": 2, "gres": "gpu:2"}), nodes) == Place(
        device="cuda", backend="nccl", gpus_least=2, gpus_most=2
    )
    assert isinstance(place(Ask.of(ask, {"nodes": 2, "gres": "gpu:1"}), nodes), Unplaceable)
    assert place(Ask.of({**ask, "device": "auto"}, {"nodes": 2}), nodes) == Place(device="cpu", backend="gloo")
    shared = place(Ask.of({**ask, "share_gpu": True}, {"gres": "gpu:1"}), nodes)
    assert isinstance(shared, Place)
    assert (shared.device, shared.backend) == ("cuda", "gloo")
