"""Bytes per run, the retention policy, and orphans."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, update
from sqlmodel import col, select

from app.clock import now
from app.db import read_session, write_session
from app.runs import queue
from app.runs.errors import Conflict, Refused
from app.runs.models import AuditEntry, Run
from app.runs.states import Reason, State
from app.schema import migrate
from app.settings import Settings
from app.storage import orphans as orphans_module
from app.storage.orphans import find_orphans, remove_orphans
from app.storage.retention import Policy, apply, plan
from app.storage.usage import folder_size, run_sizes, usage
from tests.support.ended import end_run


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(data_dir=tmp_path / "data")
    migrate(made)
    return made


def ended(engine: Engine, settings: Settings, *, days: float = 0, size: int = 1000, pinned: bool = False) -> int:
    moment = now() - timedelta(days=days)
    return end_run(engine, settings.runs_dir, payload=b"x" * size, pinned=pinned, finished_at=moment)


def under_way(engine: Engine, settings: Settings, size: int) -> int:
    with write_session(engine) as session:
        run_id = queue.number_of(queue.insert_run(session, kind="cifar", params={}))
        queue.move(session, run_id, State.QUEUED, State.STARTING, actor="w")
    folder = settings.runs_dir / str(run_id)
    folder.mkdir(parents=True)
    (folder / "log").write_bytes(b"x" * size)
    return run_id


def present(engine: Engine) -> list[int]:
    with read_session(engine) as session:
        return sorted(run_id for run_id in session.exec(select(Run.id)) if run_id)


def age(path: Path) -> None:
    long_ago = time.time() - orphans_module.QUIET_SECONDS - 60
    for each in (path, *path.rglob("*")):
        os.utime(each, (long_ago, long_ago))


def removed_ids(engine: Engine, settings: Settings, policy: Policy) -> list[int]:
    return [item.id for item in plan(engine, settings, policy).remove]


def test_hard_links_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c").write_bytes(b"123")
    (tmp_path / "sub" / "link").symlink_to("/")
    size = folder_size(tmp_path)
    assert (size.bytes, size.files) == (8, 2)
    assert folder_size(tmp_path / "none").bytes == 0


def test_ended_run_is_measured_once(engine: Engine, settings: Settings) -> None:
    run_id, other = end_run(engine, settings.runs_dir, payload=b"x" * 100), under_way(engine, settings, 10)
    first = run_sizes(engine, settings.runs_dir)
    for number in (run_id, other):
        (settings.runs_dir / str(number) / "more").write_bytes(b"x" * 7)
    again = run_sizes(engine, settings.runs_dir)
    assert again[run_id] == first[run_id]
    assert again[other].bytes == first[other].bytes + 7
    anew = {item["id"]: item["bytes"] for item in usage(engine, settings.runs_dir, refresh=True)["items"]}
    assert anew[run_id] == first[run_id].bytes + 7


def test_usage_names_largest_first(engine: Engine, settings: Settings) -> None:
    small, large = ended(engine, settings, size=10), ended(engine, settings, size=10_000)
    document = usage(engine, settings.runs_dir)
    assert [item["id"] for item in document["items"]] == [large, small]
    assert document["bytes"] == sum(item["bytes"] for item in document["items"]) > 10_010


def test_age_spares_young_and_pinned(engine: Engine, settings: Settings) -> None:
    old, pinned, young = (
        ended(engine, settings, days=31),
        ended(engine, settings, days=31, pinned=True),
        ended(engine, settings, days=29),
    )
    assert removed_ids(engine, settings, Policy(max_age_days=30)) == [old]
    assert removed_ids(engine, settings, Policy(max_age_days=0)) == [old, young]
    assert pinned in present(engine)


def test_count_keeps_the_newest(engine: Engine, settings: Settings) -> None:
    ids = [ended(engine, settings, days=10 - place) for place in range(4)]
    ended(engine, settings, days=50, pinned=True)
    under_way(engine, settings, 1)
    assert removed_ids(engine, settings, Policy(max_runs=3)) == ids[:1]
    assert removed_ids(engine, settings, Policy(max_runs=0)) == ids
    assert removed_ids(engine, settings, Policy(max_runs=4)) == []


def test_bytes_remove_oldest_until_it_fits(engine: Engine, settings: Settings) -> None:
    ids = [ended(engine, settings, days=10 - place, size=100_000) for place in range(3)]
    total = usage(engine, settings.runs_dir)["bytes"]
    assert removed_ids(engine, settings, Policy(max_bytes=total)) == []
    assert removed_ids(engine, settings, Policy(max_bytes=total - 1)) == ids[:1]
    assert removed_ids(engine, settings, Policy(max_bytes=total - 150_000)) == ids[:2]


def test_pins_and_running_can_stay_over(engine: Engine, settings: Settings) -> None:
    ended(engine, settings, size=5000, pinned=True)
    under_way(engine, settings, 3000)
    found = plan(engine, settings, Policy(max_bytes=1000))
    assert found.remove == []
    assert found.over_bytes == found.kept_bytes - 1000 > 7000


def test_kind_narrows_the_policy(engine: Engine, settings: Settings) -> None:
    ended(engine, settings, days=40)
    other = end_run(engine, settings.runs_dir, kind="resume", finished_at=now() - timedelta(days=40))
    assert removed_ids(engine, settings, Policy(max_age_days=30, kind="resume")) == [other]


@pytest.mark.parametrize("limits", [{}, {"max_runs": -1}, {"max_age_days": float("nan")}, {"max_age_days": 1e9}])
def test_senseless_policy_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(Refused, match="max_"):
        Policy(**limits)  # type: ignore[arg-type]


def test_plan_removes_nothing(engine: Engine, settings: Settings) -> None:
    old = ended(engine, settings, days=31)
    plan(engine, settings, Policy(max_age_days=30))
    assert present(engine) == [old]
    assert (settings.runs_dir / str(old) / "result.json").is_file()


def test_apply_removes_what_was_shown(engine: Engine, settings: Settings) -> None:
    old, young = ended(engine, settings, days=31), ended(engine, settings)
    policy = Policy(max_age_days=30)
    shown = plan(engine, settings, policy)
    done = apply(engine, settings, policy, seen=shown.digest, actor="operator")
    assert (done["removed"], done["bytes"], done["skipped"]) == ([old], shown.remove[0].bytes, [])
    assert present(engine) == [young]
    assert not (settings.runs_dir / str(old)).exists()
    with read_session(engine) as session:
        assert [(row.actor, row.action, row.run_id) for row in session.exec(select(AuditEntry))] == [
            ("operator", "delete", old)
        ]


def test_apply_refuses_changed_plan(engine: Engine, settings: Settings) -> None:
    old = ended(engine, settings, days=31)
    policy = Policy(max_age_days=30)
    seen = plan(engine, settings, policy).digest
    later = ended(engine, settings, days=40)
    with pytest.raises(Conflict, match="would now remove 2 runs"):
        apply(engine, settings, policy, seen=seen, actor="operator")
    assert present(engine) == [old, later]


def test_run_pinned_in_the_last_moment_stays(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ended(engine, settings, days=32), ended(engine, settings, days=31)
    policy = Policy(max_age_days=30)
    seen = plan(engine, settings, policy)

    def plan_then_pin(*_args: object) -> object:
        with write_session(engine) as session:
            session.execute(update(Run).where(col(Run.id) == first).values(pinned=True))
        return seen

    monkeypatch.setattr("app.storage.retention.plan", plan_then_pin)
    done = apply(engine, settings, policy, seen=seen.digest, actor="operator")
    assert done["removed"] == [second]
    assert [item["id"] for item in done["skipped"]] == [first]
    assert present(engine) == [first]


def orphan_names(engine: Engine, settings: Settings) -> list[tuple[str, str]]:
    return [(item.what, item.path.name) for item in find_orphans(engine, settings)]


def test_sound_directory_has_no_orphans(engine: Engine, settings: Settings) -> None:
    for folder in [settings.runs_dir / str(ended(engine, settings)), settings.runs_dir]:
        age(folder)
    under_way(engine, settings, 5)
    with write_session(engine) as session:  # never started: no folder is missing
        run_id = queue.number_of(queue.insert_run(session, kind="cifar", params={}))
        queue.request_cancel(session, run_id)
    assert orphan_names(engine, settings) == []


def test_every_orphan_is_found_with_bytes(engine: Engine, settings: Settings) -> None:
    run_id, bare = ended(engine, settings), ended(engine, settings)
    stranger = settings.runs_dir / "77"
    stranger.mkdir()
    (stranger / "file").write_bytes(b"x" * 123)
    stray = settings.runs_dir / str(run_id) / ".result.json.12.part"
    stray.write_bytes(b"x" * 45)
    half = settings.runs_dir / str(run_id) / "checkpoints" / ".step-0050.12.part"
    half.mkdir(parents=True)
    (half / "shared.pt").write_bytes(b"x" * 67)
    (settings.runs_dir / str(bare)).rename(settings.runs_dir / "someone elses")
    for path in (stranger, stray, half, settings.runs_dir / "someone elses"):
        age(path)
    found = {(item.what, item.path.name): item.bytes for item in find_orphans(engine, settings)}
    assert found == {
        ("folder_without_run", "77"): 123,
        ("run_without_folder", str(bare)): 0,
        ("stray_file", stray.name): 45,
        ("stray_file", half.name): 67,
    }


def test_fresh_files_are_not_orphans(engine: Engine, settings: Settings) -> None:
    (settings.runs_dir / "77").mkdir(parents=True)
    assert orphan_names(engine, settings) == []


def test_only_orphans_are_removed(engine: Engine, settings: Settings) -> None:
    run_id = ended(engine, settings)
    stranger, foreign = settings.runs_dir / "77", settings.runs_dir / "notes"
    for folder in (stranger, foreign):
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
        age(folder)
    assert [item.path for item in remove_orphans(engine, settings)] == [stranger]
    assert sorted(path.name for path in settings.runs_dir.iterdir()) == [str(run_id), "notes"]
    assert find_orphans(engine, settings) == []


def test_runs_elsewhere_may_be_anothers(engine: Engine, settings: Settings, tmp_path: Path) -> None:
    outside = settings.model_copy(update={"runs_dir": tmp_path / "shared"})
    stranger = outside.runs_dir / "77"
    stranger.mkdir(parents=True)
    age(stranger)
    assert [(item.what, item.removable) for item in find_orphans(engine, outside)] == [("folder_elsewhere", False)]
    assert remove_orphans(engine, outside) == []
    assert stranger.is_dir()


def test_folder_of_a_run_in_submission_stays(engine: Engine, settings: Settings) -> None:
    folder = settings.runs_dir / "1"
    folder.mkdir(parents=True)
    age(folder)
    found = find_orphans(engine, settings)
    assert [item.run_id for item in found] == [1]
    with write_session(engine) as session:  # the number is assigned between the listing and the removal
        assert queue.number_of(queue.insert_run(session, kind="cifar", params={})) == 1
    assert orphans_module._set_aside(engine, found[0], settings.runs_dir / "aside") is False
    assert folder.is_dir()


def test_link_in_place_of_a_folder(engine: Engine, settings: Settings, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    settings.runs_dir.mkdir(parents=True)
    link = settings.runs_dir / "77"
    link.symlink_to(outside)
    long_ago = time.time() - 10_000
    os.utime(link, (long_ago, long_ago), follow_symlinks=False)
    assert [item.bytes for item in find_orphans(engine, settings)] == [0]
    remove_orphans(engine, settings)
    assert not link.is_symlink()
    assert (outside / "precious").is_file()


def test_failed_run_is_no_orphan(engine: Engine, settings: Settings) -> None:
    end_run(engine, settings.runs_dir, state=State.FAILED, reason=Reason.RANK_EXIT)
    assert orphan_names(engine, settings) == []
