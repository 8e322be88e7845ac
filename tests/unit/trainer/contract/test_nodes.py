"""What a result says about nodes and networks: what its ranks really had, in every kind."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.cifar_facts import mode_facts, parameters
from tests.support.contexts import stage_context
from tests.support.traces import right
from trainer.contract.nodes import network_limits, nodes_of
from trainer.contract.paths import RunPaths
from trainer.kinds.cifar.audit.limits import limits as of_cifar
from trainer.kinds.gradient_audit.compare import limits as of_gradient_audit
from trainer.kinds.resume.compare import limits as of_resume
from trainer.kinds.token_parity.compare import limits as of_token_parity
from trainer.kinds.trace.judge.judging import judge
from trainer.kinds.trace.params import TraceParams

ONE = "several nodes and the network between them are not covered"
TWO = "on 2 nodes (n1, n2)"


def put(paths: RunPaths, stage: str, attempt: int, nodes: list[str]) -> None:
    """Write the first event of every rank of an attempt."""
    folder = paths.attempt(stage, attempt).root
    folder.mkdir(parents=True)
    for rank, node in enumerate(nodes):
        (folder / f"rank{rank}.jsonl").write_text(json.dumps({"type": "start", "host": "h", "node": node}) + "\n")


def test_nodes_are_those_of_one_attempt(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert nodes_of(paths) == []
    put(paths, "prepare", 1, ["n1"])
    put(paths, "compare", 1, ["n2"])
    assert len(nodes_of(paths)) == 1  # two stages of one process each, on different nodes
    put(paths, "train", 1, ["n3", "n4", "n3", "n4"])
    put(paths, "train", 2, ["n3", "n3"])
    assert nodes_of(paths) == ["n3", "n4"]


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"type": "phase", "node": "x"}', '{"type": "start"}', '{"type": "start", "node": 7}']
)
def test_odd_files_name_no_node(tmp_path: Path, text: str) -> None:
    put(RunPaths(tmp_path), "train", 1, ["n1"])
    (tmp_path / "train" / "attempt_1" / "rank1.jsonl").write_text(text)
    assert nodes_of(RunPaths(tmp_path)) == ["n1"]


def test_host_counts_without_a_scheduler(tmp_path: Path) -> None:
    put(RunPaths(tmp_path), "train", 1, ["n1", ""])
    assert nodes_of(RunPaths(tmp_path)) == ["h", "n1"]


def test_long_lists_of_nodes_are_shortened() -> None:
    assert ONE in network_limits([])[0]
    assert ONE in network_limits(["n1", "n1"])[0]
    assert "on 2 nodes (n1, n2): other" in network_limits(["n2", "n1"])[0]
    assert "on 128 nodes (n000, n001, n002, n003, …): other" in network_limits(f"n{i:03}" for i in range(128))[0]


@pytest.mark.parametrize(("nodes", "said", "denied"), [(["n1", "n1"], ONE, TWO), (["n1", "n2"], TWO, ONE)])
def test_every_kind_says_what_its_ranks_had(tmp_path: Path, nodes: list[str], said: str, denied: str) -> None:
    params = parameters(mode="no_sync")
    found = SimpleNamespace(
        target=SimpleNamespace(unit="token"), equal_counts=False, is_ddp=True, params=SimpleNamespace(steps=3)
    )
    contexts = {kind: stage_context(tmp_path / kind, kind) for kind in ("token-parity", "gradient-audit", "resume")}
    for context in contexts.values():
        put(context.paths, "distributed", 1, nodes)
    script = right(tmp_path)
    script.save()
    for rank, node in enumerate(nodes):
        start = {"seq": 0, "t": 1.0, "type": "start", "host": "h", "node": node, "device": "cpu"}
        (tmp_path / f"rank{rank}.jsonl").write_text(json.dumps(start) + "\n")
    limits = {
        "token-parity": of_token_parity(contexts["token-parity"]),
        "gradient-audit": of_gradient_audit(contexts["gradient-audit"], found),  # type: ignore[arg-type]
        "resume": of_resume(contexts["resume"]),
        "cifar": of_cifar(params, [mode_facts(params, "no_sync")], nodes),
        "trace": judge(tmp_path, TraceParams()).limits,
    }
    for kind, lines in limits.items():
        assert any(said in line for line in lines), (kind, lines)
        assert not any(denied in line for line in lines), (kind, lines)
