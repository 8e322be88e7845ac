"""The state of a job and the reports of its nodes -> how the attempt ended."""

from typing import Any

import pytest

from worker.executors.base import Fate, Phase
from worker.executors.slurm.endings import Job, end_of, end_of_forgotten
from worker.executors.slurm.reports import Reports
from worker.executors.slurm.states import Seen

REPORT = {"ranks": [{"rank": 0, "exit_code": 0}]}


def job(**known: Any) -> Job:
    return Job(**{"id": 77, "nodes": 2, "folder": "/shared/1", "said": "its last words", **known})


def seen(fate: Fate) -> Seen:
    return Seen(phase=Phase.ENDED, fate=fate, why="Slurm says so.")


def reports(*nodes: int, started: bool = True, supervised: bool = True, requeued: bool = False) -> Reports:
    ends = dict.fromkeys(nodes, REPORT)
    return Reports(hosts=["a", "b"], ends=ends, started=started, supervised=supervised, requeued=requeued)


ALL, ONE, NONE = reports(0, 1), reports(0), reports(started=False, supervised=False)


@pytest.mark.parametrize(
    ("known", "fate", "found", "expected", "words"),
    [
        ({}, Fate.REPORTED, ALL, Fate.REPORTED, ""),
        ({}, Fate.REPORTED, ONE, Fate.LOST, "The supervisor on b ended without a report"),
        ({}, Fate.REPORTED, NONE, Fate.NOT_STARTED, "its last words"),
        ({"said": ""}, Fate.REPORTED, NONE, Fate.NOT_STARTED, "must see that folder"),
        ({}, Fate.REPORTED, reports(supervised=False), Fate.NOT_STARTED, "started nothing on a and b: its last words"),
        ({}, Fate.REPORTED, reports(), Fate.LOST, "The supervisor on a and b"),
        ({}, Fate.TAKEN, ALL, Fate.TAKEN, "Slurm says so."),
        ({}, Fate.TAKEN, NONE, Fate.NOT_STARTED, "Slurm says so."),
        ({"stopped": True}, Fate.TAKEN, ALL, Fate.REPORTED, ""),
        ({}, Fate.TIMED_OUT, ONE, Fate.TIMED_OUT, "Slurm says so."),
        ({"stopped": True}, Fate.TIMED_OUT, ALL, Fate.TIMED_OUT, "Slurm says so."),
        ({}, Fate.REQUEUED, ALL, Fate.REQUEUED, "Slurm says so."),
        ({"failed_nodes": ["b"]}, Fate.REQUEUED, ONE, Fate.NODE_LOST, "Node b of Slurm job 77 failed."),
        ({"failed_nodes": ["b"]}, Fate.NODE_LOST, ONE, Fate.NODE_LOST, "Node b of Slurm job 77 failed."),
        ({}, Fate.NODE_LOST, ONE, Fate.NODE_LOST, "Slurm says so."),
    ],
)
def test_ends(known: dict[str, Any], fate: Fate, found: Reports, expected: Fate, words: str) -> None:
    end = end_of(job(**known), seen(fate), found)
    assert end.fate is expected
    assert words in end.why
    assert bool(words) == bool(end.why)
    assert end.node == next(iter(known.get("failed_nodes", [])), "")


@pytest.mark.parametrize(
    ("found", "expected"),
    [(ALL, Fate.REPORTED), (ONE, Fate.LOST), (NONE, Fate.LOST), (reports(0, 1, requeued=True), Fate.REQUEUED)],
)
def test_forgotten_jobs_are_judged_by_their_reports(found: Reports, expected: Fate) -> None:
    assert end_of_forgotten(job(), found).fate is expected
