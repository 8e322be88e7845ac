"""Records of a stranger: random bytes, torn lines, wrong types, links and sizes never break the judgement."""

import json
import os
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.traces import judged, right
from trainer.kinds.trace.judge import reading
from trainer.kinds.trace.judge.judging import judge
from trainer.kinds.trace.params import TraceParams

ODD: list[Any] = [None, True, -1, 10**30, 1e308, "", "NaN", "Infinity", [], {}, [[]], {"a": None}, "x" * 5000, 0, 0.5]
PARAMS = TraceParams()


def lines(folder: Path) -> list[dict[str, Any]]:
    right(folder).save()
    return [json.loads(line) for line in (folder / "rank0.trace").read_text().splitlines()]


def judge_lines(folder: Path, data: bytes) -> None:
    (folder / "rank0.trace").write_bytes(data)
    result = judge(folder, PARAMS, 0)
    assert result.model_dump_json()


def mutated(document: Any, random: Random) -> Any:
    """Return a copy with one value, at any depth, replaced by an odd one."""
    if isinstance(document, dict) and document and random.random() < 0.85:
        key = random.choice(sorted(document))
        return {**document, key: mutated(document[key], random)}
    if isinstance(document, list) and document and random.random() < 0.85:
        place = random.randrange(len(document))
        return [*document[:place], mutated(document[place], random), *document[place + 1 :]]
    return random.choice(ODD)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=4000))
def test_random_bytes(tmp_path: Path, data: bytes) -> None:
    judge_lines(tmp_path, data)
    (tmp_path / "rank0.ids").write_bytes(data)
    judge_lines(tmp_path, data + b'\n{"record":"rank","rank":0,"world_size":2}\n' + data)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_wrong_types_anywhere(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    documents = deepcopy(lines(tmp_path))
    for place in random.sample(range(1, len(documents)), 6):
        documents[place] = mutated(documents[place], random)
    judge_lines(tmp_path, b"".join(json.dumps(item).encode() + b"\n" for item in documents))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_any_prefix_of_a_file(tmp_path: Path, seed: int) -> None:
    right(tmp_path).save()
    data = (tmp_path / "rank0.trace").read_bytes()
    judge_lines(tmp_path, data[: Random(seed).randrange(len(data))])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_records_out_of_order_or_twice(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    documents = lines(tmp_path)
    documents += random.sample(documents, 5)
    random.shuffle(documents)
    judge_lines(tmp_path, b"".join(json.dumps(item).encode() + b"\n" for item in documents))


def test_malformed_lines_are_counted_and_keep_the_verdict_open(tmp_path: Path) -> None:
    made = right(tmp_path)
    assert judged(made).verdict == "pass"
    made.save()
    with (tmp_path / "rank0.trace").open("ab") as handle:
        handle.write(
            b'nonsense\n[1]\n{"record": 3}\n{"record": "window", "step": "one"}\n{"record": "later"}\n\n{"torn'
        )
    result = judge(tmp_path, PARAMS, 0)
    assert (result.summary["coverage"]["malformed_lines"], result.summary["coverage"]["torn_files"]) == (4, 1)
    assert result.verdict == "inconclusive"


def test_deep_nesting_and_long_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right(tmp_path).save()
    monkeypatch.setattr(reading, "MOST_LINE", 100_000)
    deep = b'{"record": "site", "site": ' + b"[" * 90_000 + b"]" * 9 + b"}\n"
    long = b'{"record": "site", "function": "' + b"x" * 200_000 + b'"}\n'
    with (tmp_path / "rank1.trace").open("ab") as handle:
        handle.write(deep + long)
    assert judge(tmp_path, PARAMS, 0).summary["coverage"]["malformed_lines"] == 2


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    right(tmp_path / "outside").save()
    folder = tmp_path / "trace"
    folder.mkdir()
    (folder / "rank0.trace").symlink_to(tmp_path / "outside" / "rank0.trace")
    os.mkfifo(folder / "rank1.trace")
    (folder / "rank2.trace").mkdir()
    (folder / "restart_1").symlink_to(tmp_path / "outside")
    result = judge(folder, PARAMS, 0)
    assert (result.summary["world_size"], result.summary["coverage"]["ranks"]) == (0, 0)
    assert result.summary["coverage"]["foreign_files"] == 3


def test_file_of_another_rank_is_a_stranger(tmp_path: Path) -> None:
    right(tmp_path).save()
    (tmp_path / "rank7.trace").write_bytes((tmp_path / "rank1.trace").read_bytes())
    result = judge(tmp_path, PARAMS, 0)
    assert result.summary["coverage"]["foreign_files"] == 1
    assert result.verdict == "inconclusive"


def test_more_bytes_than_are_read_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = right(tmp_path)
    made.save()
    size = (tmp_path / "rank0.trace").stat().st_size
    monkeypatch.setattr(reading, "MOST_FILE", size // 2)
    result = judge(tmp_path, PARAMS, 0)
    assert result.summary["coverage"]["bytes_not_read"] > size // 2
    assert result.verdict != "pass"


def test_world_size_of_a_stranger_costs_nothing(tmp_path: Path) -> None:
    made = right(tmp_path)
    for rank in made.records:
        rank[0]["world_size"] = 1_000_000
    result = judged(made)
    assert len(result.summary["coverage"]["missing_ranks"]) == 100
    assert result.verdict == "inconclusive"
