"""The command line as a process: answers, exit codes, and the same answer with and without a service."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.db import create_database_engine
from app.schema import migrate
from app.settings import Settings
from tests.support.cli import call
from tests.support.pages_data import add_run, add_stages, save_result, write_log
from tests.support.results import every_panel, make_result
from tests.support.service import running_service
from trainer.contract.kinds import kinds


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def engine(data_dir: Path) -> Iterator[Engine]:
    settings = Settings(data_dir=data_dir)
    migrate(settings)
    engine = create_database_engine(settings)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def ended(data_dir: Path, engine: Engine) -> dict[str, int]:
    settings = Settings(data_dir=data_dir)
    passed = add_run(
        engine, "succeeded", verdict="pass", reason="completed", name="<b>x</b>", moves=("starting", "running")
    )
    add_stages(engine, passed, {"prepare": "succeeded", "distributed": "succeeded"})
    save_result(settings, passed, make_result())
    write_log(settings, passed, "distributed", 0, "zero one\nzero two")
    write_log(settings, passed, "distributed", 1, "\x1b[31mone\n", stream="stderr")
    failed = add_run(engine, "succeeded", verdict="fail", reason="completed", params={"seed": 48})
    save_result(settings, failed, make_result(error=0.5, panels=every_panel()))
    crashed = add_run(engine, "failed", reason="rank_exit", diagnosis="rank 1 exited with code 3")
    return {"passed": passed, "failed": failed, "crashed": crashed}


READS = [
    ("kinds",),
    ("list", "--state", "succeeded", "--limit", "1"),
    ("list", "-q", "no such run"),
    ("show", "1"),
    ("show", "999"),
    ("logs", "1"),
    ("logs", "1", "--rank", "1", "--stage", "distributed"),
    ("compare", "1", "2"),
    ("compare", "1", "1"),
    ("verify", "1"),
    ("verify", "2"),
    ("verify", "999"),
    ("check-checkpoints", "1"),
    ("check-checkpoints",),
    ("figures", "999"),
    ("cancel", "1"),
    ("retry", "1", "--resume"),
    ("list", "--state", "asleep"),
]


@pytest.fixture(scope="module")
def port(data_dir: Path, ended: dict[str, int]) -> Iterator[str]:
    with running_service(Settings(data_dir=data_dir)) as service:
        yield service.url.rsplit(":", 1)[1]


@pytest.mark.parametrize("arguments", READS, ids=" ".join)
def test_service_and_directory_answer_alike(
    data_dir: Path, ended: dict[str, int], port: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    direct = call(*arguments, "--json", data_dir=data_dir)
    remote = call(*arguments, "--json", data_dir=tmp_path, DDP_AUDIT_PORT=port)
    assert direct.document == remote.document
    assert direct.returncode == remote.returncode
    assert not (tmp_path / "ddp-audit.db").exists()


def test_figures_of_a_service_are_drawn_here(
    data_dir: Path, ended: dict[str, int], port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    number = str(ended["failed"])
    here = call("figures", number, "--json", data_dir=tmp_path, DDP_AUDIT_PORT=port).document["items"]
    there = call("figures", number, "--json", data_dir=data_dir).document["items"]
    assert {Path(path).parent for path in here} == {tmp_path / f"run-{number}-figures"}
    assert [Path(path).read_bytes() for path in here] == [Path(path).read_bytes() for path in there]


def test_unreachable_service_is_seven(tmp_path: Path) -> None:
    done = call("list", "--json", data_dir=tmp_path, DDP_AUDIT_HOST="127.0.0.1", DDP_AUDIT_PORT="1")
    assert done.returncode == 7
    assert "127.0.0.1:1" in done.document["detail"]
    assert done.document["code"] == "unreachable"


def test_tokens_are_sent(tmp_path: Path) -> None:
    settings = Settings.model_validate({"data_dir": tmp_path, "token": "secret-ö", "viewer_token": "look"})
    with running_service(settings) as service:
        number = {"DDP_AUDIT_PORT": service.url.rsplit(":", 1)[1]}
        assert call("list", data_dir=tmp_path, **number).returncode == 2
        assert call("list", data_dir=tmp_path, **number, DDP_AUDIT_VIEWER_TOKEN="look").returncode == 0
        assert call("list", data_dir=tmp_path, **number, DDP_AUDIT_TOKEN="secret-ö").returncode == 0
        denied = call("run", "resume", "--json", data_dir=tmp_path, **number, DDP_AUDIT_VIEWER_TOKEN="look")
        assert (denied.returncode, denied.document["code"]) == (2, "read_only")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("frobnicate",), 2),
        (("show",), 2),
        (("show", "x"), 2),
        (("list", "--limit", "0"), 2),
        (("run", "nothing"), 2),
        (("run", "token-parity", "-p", "updates"), 2),
        (("run", "token-parity", "-p", "updates=0"), 2),
        (("run", "token-parity", "-p", "learning_rate=NaN"), 2),
        (("run", "token-parity", "-p", "foo=1"), 2),
        (("run", "token-parity", "-p", "seed=1", "-p", "seed=2"), 2),
        (("show", "999"), 6),
        (("logs", "999"), 6),
        (("logs", "1", "--rank", "2"), 6),
        (("logs", "1", "--stage", "nowhere"), 6),
        (("cancel", "999"), 6),
        (("verify", "999"), 6),
        (("figures", "999"), 6),
        (("check-checkpoints", "999"), 6),
        (("compare", "1", "999"), 6),
        (("acquire", "imagenet"), 2),
        (("acquire", "folder:nowhere"), 1),
        (("predict", "missing.png"), 2),
    ],
    ids=str,
)
def test_exit_code_tells_what_is_wrong(
    data_dir: Path, ended: dict[str, int], arguments: tuple[str, ...], code: int
) -> None:
    done = call(*arguments, data_dir=data_dir)
    assert done.returncode == code, done.stderr
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show",), "usage"),
        (("show", "x"), "usage"),
        (("clean", "--scope", "all"), "usage"),
        (("run", "token-parity", "-p", "updates"), "usage"),
        (("run", "token-parity", "-p", "updates=0"), "invalid_params"),
        (("logs", "1", "--rank", "2"), "not_found"),
        (("verify", "999"), "unknown_run"),
        (("show", "999"), "unknown_run"),
    ],
    ids=str,
)
def test_refusal_is_one_document(data_dir: Path, ended: dict[str, int], arguments: tuple[str, ...], code: str) -> None:
    done = call(*arguments, "--json", data_dir=data_dir)
    assert done.document["code"] == code
    assert done.document["detail"] in done.stderr
    assert not call(*arguments, data_dir=data_dir).stdout


def test_interruption_is_one_document(data_dir: Path, ended: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.cli.client.Client.get", interrupted)
    done = call("show", "1", "--json", data_dir=data_dir)
    assert (done.returncode, done.document["code"]) == (130, "interrupted")


def test_refusal_names_the_field_on_stderr(data_dir: Path) -> None:
    done = call("run", "token-parity", "-p", "updates=0", data_dir=data_dir)
    assert "updates" in done.stderr
    assert not done.stdout


def test_terminal_is_not_steered(data_dir: Path, ended: dict[str, int]) -> None:
    done = call("logs", str(ended["passed"]), data_dir=data_dir)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines() == [
        "[distributed 1 rank 0 stdout] zero one",
        "[distributed 1 rank 0 stdout] zero two",
        "[distributed 1 rank 1 stderr] \ufffd[31mone",
    ]


def test_followed_log_is_json_lines(data_dir: Path, ended: dict[str, int]) -> None:
    done = call("logs", str(ended["passed"]), "-f", "--json", data_dir=data_dir)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["line"] for line in lines] == ["zero one", "zero two", "\x1b[31mone"]
    assert lines[0].keys() == {"stage", "attempt", "rank", "stream", "line"}


def test_verify_repeats_the_verdict(data_dir: Path, ended: dict[str, int]) -> None:
    path = Settings(data_dir=data_dir).runs_dir / str(ended["passed"])
    config = {"run_id": ended["passed"], "kind": "token-parity", "params": {}, "datasets_dir": ""}
    (path / "config.json").write_text(json.dumps(config | {"backend": "gloo", "device": "cpu"}))
    good = call("verify", str(ended["passed"]), "--json", data_dir=data_dir)
    assert (good.returncode, good.document["ok"]) == (0, True)
    assert good.document["pass_line"].startswith("PASS token-parity")
    stored = path / "result.json"
    sound = stored.read_text()
    stored.write_text(sound.replace('"verdict": "pass"', '"verdict": "fail"'))
    bad = call("verify", str(ended["passed"]), "--json", data_dir=data_dir)
    stored.write_text(sound)
    assert bad.returncode == 1
    assert "does not follow from the checks" in bad.document["problems"][0]
    assert call("verify", str(ended["failed"]), data_dir=data_dir).returncode == 1


def test_damaged_checkpoint_is_found(data_dir: Path, ended: dict[str, int]) -> None:
    assert call("check-checkpoints", data_dir=data_dir).returncode == 0
    step = Settings(data_dir=data_dir).runs_dir / str(ended["crashed"]) / "checkpoints" / "step-0003"
    step.mkdir(parents=True)
    (step / "model.pt").write_bytes(b"half")
    done = call("check-checkpoints", str(ended["crashed"]), "--json", data_dir=data_dir)
    assert done.returncode == 1
    assert "did not finish" in done.document["items"][0]["problem"]


def test_acquire_of_a_kind_says_nothing_to_get(data_dir: Path) -> None:
    for name in (*kinds(), "synthetic"):
        done = call("acquire", name, "--json", data_dir=data_dir)
        assert done.returncode == 0
        assert "nothing to fetch" in done.document["text"]
