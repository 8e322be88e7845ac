"""Every command keeps its exit codes with a standard output that is full, closed, without a reader or ASCII."""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from sqlalchemy import Engine, select
from sqlmodel import col

from app.cli.main import app
from app.db import create_database_engine, write_session
from app.runs.derived import Delivery
from app.settings import Settings
from tests.support.cli import Done, call
from tests.support.ended import end_run
from tests.support.forked import Forks, Out
from tests.support.pages_data import add_events, add_run, fill, write_log
from tests.support.service import running_service
from trainer.contract.manifest import MANIFEST

NAME = "pr\N{LATIN SMALL LETTER U WITH DIAERESIS}fung \N{BRIEFCASE}"
COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
OUTS: tuple[Out, ...] = ("ascii", "full", "closed", "gone")
SILENT = {"worker"}
"""Commands that print nothing to standard output; so does `serve`, which ends only by a signal."""
ON_THIS_MACHINE = {"acquire", "backup", "check-environment", "copy-database", "migrate", "restore", "worker"}
"""Commands that do not use a service."""
FILES = {"badge", "export", "junit", "page"}
"""Commands that output a file, byte for byte."""
WITHOUT_JSON = {"serve", "worker"}
HEAVY = {"check-environment", "figures", "predict", "targets"}
"""Commands that take seconds: every output, in one form, is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A data directory with one item of each sort, and methods to add more."""

    settings: Settings
    engine: Engine
    ids: dict[str, int]
    folder: Path
    port: str

    def ended(self) -> str:
        """Return a further run that has ended."""
        return str(end_run(self.engine, self.settings.runs_dir))

    def queued(self) -> str:
        """Return a further run that waits."""
        return str(add_run(self.engine, "queued", backend=None, device=None))

    def delivery(self) -> str:
        """Return a delivery that may be sent again, whatever its status."""
        with write_session(self.engine) as session:
            row = session.scalars(select(Delivery).order_by(col(Delivery.id))).first()
            assert row is not None
            row.status = "failed"
            return str(row.id)

    def new(self, name: str) -> str:
        """Return a path that does not exist yet."""
        return str(self.folder / f"{name}-{len(list(self.folder.iterdir()))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A call of a command that succeeds."""

    arguments: Callable[[Place], list[str]]
    code: int = 0


def of(*words: str, code: int = 0) -> Case:
    """Return a call without variable arguments; `{name}` is the number of a run."""
    return Case(arguments=lambda place: [word.format(**place.ids) for word in words], code=code)


CASES = {
    "acquire": of("token-parity"),
    "artifacts": of("{passed}"),
    "audit": of(),
    "backup": Case(arguments=lambda place: [place.new("backup")]),
    "badge": of("token-parity"),
    "cancel": Case(arguments=lambda place: [place.queued()]),
    "check-checkpoints": of("{saved}", code=1),
    "check-environment": of(),
    "clean": of(),
    "compare": of("{passed}", "{broken}"),
    "copy-database": Case(
        arguments=lambda place: [str(place.settings.data_dir / "ddp-audit.db"), f"{place.new('copied')}.db"]
    ),
    "delete": Case(arguments=lambda place: [place.ended(), "--yes"]),
    "deliveries": of(),
    "edit": of("{failed}", "--name", NAME),
    "events": of("{passed}"),
    "export": of("{passed}"),
    "figures": of("{broken}"),
    "junit": of("{passed}"),
    "kinds": of(),
    "list": of(),
    "logs": of("{passed}"),
    "metrics": of("{passed}"),
    "migrate": of(),
    "orphans": of(code=1),
    "page": of("{passed}"),
    "predict": Case(arguments=lambda place: [str(place.folder / "picture.png"), "--run", str(place.ids["model"])]),
    "redeliver": Case(arguments=lambda place: [place.delivery()]),
    "resources": of("{passed}"),
    "restore": Case(arguments=lambda place: [str(place.folder / "kept.tar"), "--data-dir", place.new("restored")]),
    "result": of("{broken}", code=1),
    "retention": of("--max-runs", "0"),
    "retry": of("{passed}"),
    "run": of("token-parity", "--detach", "--name", NAME),
    "show": of("{passed}"),
    "status": of(code=1),
    "targets": of(),
    "trace": Case(arguments=lambda place: ["--prepare", place.new("traced")]),
    "trends": of("token-parity"),
    "usage": of(),
    "verify": of("{broken}", code=1),
    "worker": of("--once"),
}
"""One call of every command: a new command needs a line here."""


def test_no_command_is_forgotten() -> None:
    assert sorted({*CASES, "serve"}) == COMMANDS


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"))
    engine = create_database_engine(settings)
    ids = fill(settings, engine)
    # `worker --once` executes the queue, which is empty here because it uses its own directory.
    ids |= add_wide(settings, engine, ids)
    folder = tmp_path_factory.mktemp("folder")
    Image.new("RGB", (32, 32), (200, 30, 30)).save(folder / "picture.png")
    assert call("backup", str(folder / "kept.tar"), data_dir=settings.data_dir).returncode == 0
    with running_service(settings) as service:
        port = service.url.rsplit(":", 1)[1]
        yield Place(settings=settings, engine=engine, ids=ids, folder=folder, port=port)
    engine.dispose()


def add_wide(settings: Settings, engine: Engine, ids: dict[str, int]) -> dict[str, int]:
    """Add non-ASCII characters to shown texts, and runs with a model and with a damaged checkpoint."""
    from tests.support.inference import CLASSES, network
    from trainer.common.model_file import save_model

    passed = ids["passed"]
    assert call("edit", str(passed), "--name", NAME, "--notes", NAME, data_dir=settings.data_dir).returncode == 0
    with write_session(engine) as session:
        add_events(session, passed, "distributed", [{"type": "message", "level": "info", "text": NAME}])
    write_log(settings, passed, "distributed", 0, f"{NAME}\n")
    file = settings.runs_dir / str(passed) / "artifacts" / f"{NAME}.txt"
    file.write_text(NAME)
    saved = add_run(engine, "failed", reason="rank_exit", name=NAME)
    half = settings.runs_dir / str(saved) / "checkpoints" / "step-0001"
    half.mkdir(parents=True)
    (half / MANIFEST).write_text("{")
    folder = settings.runs_dir / str(ids["cifar"]) / "artifacts" / "no_sync"
    save_model(folder / "model.pt", network(), classes=CLASSES, seed=47)
    return {"saved": saved, "model": ids["cifar"]}


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks(tmp_path_factory.mktemp("forks")) as made:
        yield made


def places_of(name: str, place: Place, empty: Path) -> list[tuple[Path, dict[str, str]]]:
    """Return the data directories and settings for the calls."""
    if name == "worker":
        return [(empty, {})]
    here: tuple[Path, dict[str, str]] = (place.settings.data_dir, {})
    return [here] if name in ON_THIS_MACHINE else [here, (empty, {"DDP_AUDIT_PORT": place.port})]


@pytest.mark.parametrize("name", sorted(CASES))
def test_output_changes_no_meaning(name: str, place: Place, forks: Forks, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "empty").mkdir()
    places = places_of(name, place, tmp_path / "empty")
    forms = [False] if name in WITHOUT_JSON else [False, True]
    # Every two of place, output and form come together; all three, for every command, would take minutes.
    ways = [
        (places[(turn + as_json) % len(places)], out, as_json) for turn, out in enumerate(OUTS) for as_json in forms
    ]
    for (data_dir, given), out, as_json in [*ways[::4], *ways[3::4]] if name in HEAVY else ways:
        arguments = [name, *case.arguments(place), *(["--json"] if as_json else [])]
        done = forks.call(arguments, out, data_dir=data_dir, cwd=tmp_path, **given)
        judge(name, case.code, out, done, as_json=as_json)


def judge(name: str, code: int, out: Out, done: Done, *, as_json: bool) -> None:
    """Check the exit code, that only expected text was printed, and that it is ASCII."""
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    told = [line for line in done.stderr.splitlines() if "standard output cannot be written" in line]
    if out in {"full", "closed"} and name not in SILENT:
        assert (done.returncode, len(told)) == (3, 1), done
        why = "No space left on device" if out == "full" else "Bad file descriptor"
        assert told == [f"ddp-audit: standard output cannot be written: {why}"]
        return
    assert (done.returncode, told) == (code, []), done
    if out == "ascii" and as_json:
        assert done.stdout.isascii()
        assert done.document is not None
    elif out == "ascii" and name not in FILES:
        assert done.stdout.isascii()


def test_ascii_documents_say_the_same(place: Place, forks: Forks, tmp_path: Path) -> None:
    passed = str(place.ids["passed"])
    for words in (["show", passed], ["logs", passed], ["events", passed], ["artifacts", passed], ["export", passed]):
        wide, ascii_ = (
            forks.call([*words, "--json"], out, data_dir=place.settings.data_dir, cwd=tmp_path)
            for out in ("wide", "ascii")
        )
        assert NAME in wide.stdout
        assert ascii_.stdout.isascii()
        assert json.loads(ascii_.stdout) == json.loads(wide.stdout)


def test_ascii_text_spells_letters(place: Place, forks: Forks, tmp_path: Path) -> None:
    done = forks.call(["logs", str(place.ids["passed"])], "ascii", data_dir=place.settings.data_dir, cwd=tmp_path)
    assert r"pr\xfcfung \U0001f4bc" in done.stdout
    shown = forks.call(["show", str(place.ids["passed"])], "ascii", data_dir=place.settings.data_dir, cwd=tmp_path)
    assert shown.stdout.startswith(rf"run {place.ids['passed']} - pr\xfcfung \U0001f4bc - token-parity")
    assert "\n------" in shown.stdout  # the line below the headings of a table


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_ascii_too(name: str, forks: Forks, tmp_path: Path) -> None:
    words = [*filter(None, [name]), "--help"]
    done = forks.call(words, "ascii", data_dir=tmp_path, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "Usage: ddp-audit" in done.stdout
    for out in ("full", "closed"):
        judge("help", 0, out, forks.call(words, out, data_dir=tmp_path, cwd=tmp_path), as_json=False)


@pytest.mark.parametrize("out", ["full", "closed", "gone"])
@pytest.mark.parametrize(("words", "code"), [(("show", "999"), 6), (("show",), 2), (("list", "--limit", "0"), 2)])
def test_first_fault_gives_the_code(
    words: tuple[str, ...], code: int, out: Out, *, place: Place, forks: Forks, tmp_path: Path
) -> None:
    for json_ in ([], ["--json"]):
        done = forks.call([*words, *json_], out, data_dir=place.settings.data_dir, cwd=tmp_path)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert "standard output" not in done.stderr


def test_unforeseen_error_is_no_verdict(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("a mistake in the program")

    monkeypatch.setattr("app.cli.client.Client.get", broken)
    done = call("show", "1", "--json", data_dir=place.settings.data_dir)
    assert (done.returncode, done.document["code"]) == (3, "failed")
    assert "a mistake in the program" in done.document["detail"]
    assert "Traceback" in done.stderr


def test_reader_that_leaves_ends_a_download(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.files.listening", lambda: False)
    pieces: list[int] = []

    def fetch(write: Callable[[bytes], object]) -> None:
        for number in range(10):
            pieces.append(number)
            write(b"x")

    from app.cli.files import to_output

    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "utf-8"))
    to_output(fetch)
    assert pieces == [0]
