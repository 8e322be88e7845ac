"""Backups of a live data directory: complete, verified, and never accepted if incomplete."""

import io
import json
import sqlite3
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlmodel import select

from app.clock import now
from app.db import create_database_engine, read_session, write_session
from app.runs.errors import Conflict, NotFound, Refused
from app.runs.models import Meta, Run, WorkerRow
from app.schema import migrate
from app.settings import Settings
from app.storage.archive import BackupInvalid
from app.storage.backup import backup
from app.storage.restore import restore
from tests.support.ended import end_run
from tests.support.waiting import meanwhile, until

pytestmark = pytest.mark.sqlite


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Settings, Engine]]:
    settings = Settings(data_dir=tmp_path / "live")
    migrate(settings)
    engine = create_database_engine(settings)
    for place in range(3):
        end_run(engine, settings.runs_dir, name=f"run {place}", payload=bytes([place]) * 1000)
    yield settings, engine
    engine.dispose()


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def names(settings: Settings) -> list[str]:
    engine = create_database_engine(settings)
    with read_session(engine) as session:
        found = sorted(session.exec(select(Run.name)))
    engine.dispose()
    return found


def rewrite(source: Path, target: Path, change: Callable[[str, bytes], Sequence[tuple[Any, bytes]]]) -> None:
    """Copy an archive member by member; `change` may modify each."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for info in old:
            content = old.extractfile(info)
            assert content is not None
            for kept, data in change(info.name, content.read()):
                member = kept if isinstance(kept, tarfile.TarInfo) else tarfile.TarInfo(kept)
                member.size = len(data)
                new.addfile(member, io.BytesIO(data))


def test_restore_gives_everything_back(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, _engine = live
    made = backup(settings, tmp_path / "b.tar")
    assert (made["runs"], made["files"], made["missing"], made["skipped"]) == (3, 6, [], [])
    elsewhere = Settings(data_dir=tmp_path / "new")
    done = restore(elsewhere, tmp_path / "b.tar")
    assert done["runs"] == 3
    assert files_of(elsewhere.runs_dir) == files_of(settings.runs_dir)
    assert names(elsewhere) == ["run 0", "run 1", "run 2"]
    assert [path.name for path in elsewhere.runs_dir.iterdir() if path.name.startswith(".")] == []


def test_backup_while_writers_write(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, engine = live
    written, begun, pairs = [0], [0], [0]

    def write_pair() -> None:
        with write_session(engine) as session:  # two rows that belong together
            session.merge(Meta(key="left", value=str(written[-1] + 1)))
            session.merge(Meta(key="right", value=str(written[-1] + 1)))
        written.append(written[-1] + 1)

    with meanwhile(write_pair):
        for place in range(3):
            begun.append(written[-1] + 1)
            until(lambda: written[-1] >= begun[-1], "another pair")
            backup(settings, tmp_path / f"{place}.tar")
    for place in range(3):
        target = Settings(data_dir=tmp_path / f"t{place}")
        restore(target, tmp_path / f"{place}.tar")
        with sqlite3.connect(target.data_dir / "ddp-audit.db") as connection:
            pair = dict(connection.execute("SELECT key, value FROM meta WHERE key IN ('left', 'right')").fetchall())
        connection.close()
        assert pair["left"] == pair["right"]
        pairs.append(int(pair["left"]))
    assert all(number >= least for number, least in zip(pairs, begun, strict=True))
    assert 0 < pairs[1] < pairs[2] < pairs[3] <= written[-1]  # more has been written before each


def test_file_that_grows_stays_readable(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, _engine = live
    log = settings.runs_dir / "1" / "growing.log"
    log.write_bytes(b"line\n")

    def append() -> None:
        with log.open("ab") as handle:
            handle.write(b"line\n" * 100)

    with meanwhile(append):
        grown = until(lambda: log.stat().st_size > 5 and log.stat().st_size, "the first growth")
        backup(settings, tmp_path / "b.tar")
        until(lambda: log.stat().st_size > grown, "growth since the backup began")
    target = Settings(data_dir=tmp_path / "t")
    restore(target, tmp_path / "b.tar")
    kept = (target.runs_dir / "1" / "growing.log").read_bytes()
    assert len(kept) >= grown
    assert log.read_bytes().startswith(kept)


def test_half_a_backup_never_appears(
    live: tuple[Settings, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _engine = live

    def break_off(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("app.storage.backup.add_manifest", break_off)
    with pytest.raises(OSError, match="No space"):
        backup(settings, tmp_path / "out" / "b.tar")
    assert list((tmp_path / "out").iterdir()) == []


def test_existing_backup_is_kept(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, _engine = live
    (tmp_path / "b.tar").write_bytes(b"precious")
    with pytest.raises(Conflict, match="exists"):
        backup(settings, tmp_path / "b.tar")
    assert (tmp_path / "b.tar").read_bytes() == b"precious"
    backup(settings, tmp_path / "b.tar", replace=True)
    assert tarfile.is_tarfile(tmp_path / "b.tar")


def test_secrets_and_links_stay_out(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, _engine = live
    (settings.data_dir / "session.key").write_text("secret")
    (tmp_path / "outside").write_text("other people's")
    (settings.runs_dir / "1" / "artifacts" / "link").symlink_to(tmp_path / "outside")
    made = backup(settings, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert not [name for name in tar.getnames() if "key" in name or "link" in name]
        assert all(member.isreg() for member in tar)
    assert made["skipped"] == ["runs/1/artifacts/link"]
    assert (tmp_path / "b.tar").stat().st_mode & 0o077 == 0


def test_restore_refuses_full_target(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, engine = live
    backup(settings, tmp_path / "b.tar")
    end_run(engine, settings.runs_dir, name="later")
    before = files_of(settings.runs_dir)
    with pytest.raises(Conflict, match="not empty"):
        restore(settings, tmp_path / "b.tar")
    assert files_of(settings.runs_dir) == before
    assert "later" in names(settings)
    engine.dispose()
    done = restore(settings, tmp_path / "b.tar", replace=True)
    assert names(settings) == ["run 0", "run 1", "run 2"]
    assert (Path(done["replaced"]) / "4" / "result.json").is_file()
    assert (Path(done["replaced"]) / "ddp-audit.db").is_file()


def test_restore_refuses_working_service(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, engine = live
    backup(settings, tmp_path / "b.tar")
    with write_session(engine) as session:
        session.add(WorkerRow(id="w", pid=7, pid_start=1, boot_id="b", host="h", started_at=now(), heartbeat_at=now()))
    with pytest.raises(Conflict, match="process 7 on h"):
        restore(settings, tmp_path / "b.tar", replace=True)


def test_truncated_backup_is_refused(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, _engine = live
    backup(settings, tmp_path / "b.tar")
    whole = (tmp_path / "b.tar").read_bytes()
    target = Settings(data_dir=tmp_path / "t")
    for share in (0.2, 0.6, 0.9):
        (tmp_path / "half.tar").write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(BackupInvalid):
            restore(target, tmp_path / "half.tar")
    assert not (target.data_dir / "ddp-audit.db").exists()
    assert list(target.runs_dir.iterdir()) == []


def test_flipped_byte_is_refused(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, _engine = live
    backup(settings, tmp_path / "b.tar")
    rewrite(
        tmp_path / "b.tar",
        tmp_path / "bad.tar",
        lambda name, data: [(name, data[:-1] + b"!" if name == "runs/2/artifacts/payload.bin" else data)],
    )
    with pytest.raises(BackupInvalid, match=r"payload\.bin is damaged"):
        restore(Settings(data_dir=tmp_path / "t"), tmp_path / "bad.tar")


def link_out() -> tarfile.TarInfo:
    info = tarfile.TarInfo("runs/1/link")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc"
    return info


@pytest.mark.parametrize(
    "member",
    [
        "../evil",
        "/tmp/evil",
        "runs/1/../../../evil",
        "runs/../evil",
        "other/evil",
        "runs/1//evil",
        "runs/x/evil",
        pytest.param(link_out(), id="link"),
    ],
    ids=str,
)
def test_member_outside_is_refused(
    live: tuple[Settings, Engine], tmp_path: Path, member: tarfile.TarInfo | str
) -> None:
    settings, _engine = live
    backup(settings, tmp_path / "b.tar")
    rewrite(
        tmp_path / "b.tar",
        tmp_path / "bad.tar",
        lambda name, data: [(member, b"")] * (name == "manifest.json") + [(name, data)],
    )
    target = Settings(data_dir=tmp_path / "deep" / "t")
    with pytest.raises(BackupInvalid):
        restore(target, tmp_path / "bad.tar")
    assert not list(tmp_path.rglob("evil"))
    assert not (target.data_dir / "ddp-audit.db").exists()


def test_unknown_member_is_refused(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, _engine = live
    backup(settings, tmp_path / "b.tar")
    rewrite(
        tmp_path / "b.tar",
        tmp_path / "bad.tar",
        lambda name, data: [("runs/1/planted", b"x")] * (name == "manifest.json") + [(name, data)],
    )
    with pytest.raises(BackupInvalid, match="not in the manifest"):
        restore(Settings(data_dir=tmp_path / "t"), tmp_path / "bad.tar")


def test_newer_schema_is_refused(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, engine = live
    with engine.connect() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.commit()
    backup(settings, tmp_path / "b.tar")
    target = Settings(data_dir=tmp_path / "t")
    with pytest.raises(Conflict, match="schema 9999, this program supports up to"):
        restore(target, tmp_path / "b.tar")
    assert not (target.data_dir / "ddp-audit.db").exists()


def test_manifest_names_every_member(live: tuple[Settings, Engine], tmp_path: Path) -> None:
    settings, _engine = live
    backup(settings, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar") as tar:
        listed = tar.getnames()
        content = tar.extractfile("manifest.json")
        assert content is not None
        manifest = json.load(content)
    assert listed[-1] == "manifest.json"
    assert sorted(manifest["members"]) == sorted(listed[:-1])


def test_nothing_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        backup(Settings(data_dir=tmp_path / "none"), tmp_path / "b.tar")
    with pytest.raises(Refused, match="pg_dump"):
        backup(Settings(data_dir=tmp_path, database_url="postgresql://h/d"), tmp_path / "b.tar")
    with pytest.raises(NotFound):
        restore(Settings(data_dir=tmp_path / "none"), tmp_path / "no.tar")
