"""Settings that are not supported yet are refused by name, and unset paths follow from the data directory."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from app import places
from app.settings import Settings, load_settings
from tests.support.cli import call


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA_DIR", "RUNS_DIR", "DATASETS_DIR", "DATABASE_URL", "EXECUTOR", "TARGETS"):
        monkeypatch.delenv(f"DDP_AUDIT_{name}", raising=False)


@pytest.mark.parametrize(("name", "value"), [("executor", "pbs"), ("executor", "Local"), ("targets", "nightly")])
def test_what_does_nothing_yet_is_refused(clean: None, tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ValidationError) as refused:
        load_settings(data_dir=tmp_path, **{name: value})
    assert [error["loc"] for error in refused.value.errors()] == [(name,)]
    assert Settings(data_dir=tmp_path, executor="local", targets="").executor == "local"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("DDP_AUDIT_EXECUTOR", "pbs", "must be local"),
        ("DDP_AUDIT_TARGETS", "mine/train.py", "is not package.module:Object"),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [("list",), ("list", "--json"), ("migrate",), ("serve", "--port", "0", "--no-worker"), ("worker", "--once")],
)
def test_programs_refuse_it_by_name(
    tmp_path: Path, arguments: tuple[str, ...], name: str, value: str, told: str
) -> None:
    done = call(*arguments, data_dir=tmp_path, **{name: value})
    assert done.returncode == 2
    assert f"{name}: " in done.stderr
    assert told in done.stderr
    assert not list(tmp_path.iterdir())
    if "--json" in arguments:
        assert told in done.document["detail"]


def test_data_lies_in_the_checkout(clean: None) -> None:
    root = Path(__file__).resolve().parents[3]
    assert places.checkout() == root
    settings = Settings()
    assert settings.data_dir == root / "var"
    assert settings.runs_dir == root / "var" / "runs"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_DATA_HOME": "/data/of/user"}, "/data/of/user/ddp-audit"),
        ({"XDG_DATA_HOME": ""}, "{home}/.local/share/ddp-audit"),
        ({"XDG_DATA_HOME": "relative"}, "{home}/.local/share/ddp-audit"),
        ({}, "{home}/.local/share/ddp-audit"),
    ],
)
def test_data_of_an_installed_program_is_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(places, "checkout", lambda: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.default_data_dir(environment) == Path(expected.format(home=tmp_path))


def test_user_without_home_must_say_where(clean: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(places, "checkout", lambda: None)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ValidationError, match="set DDP_AUDIT_DATA_DIR"):
        Settings()
    assert Settings(data_dir=tmp_path).data_dir == tmp_path


@pytest.mark.parametrize(
    ("pyproject", "is_one"),
    [
        ('[project]\nname = "ddp-audit"\n', True),
        ('[project]\nname = "other"\n', False),
        ('[tool.x]\nname = "ddp-audit"\n', False),
        ("name = [broken", False),
        (None, False),
    ],
)
def test_checkout_is_known_by_its_own_project_file(tmp_path: Path, pyproject: str | None, is_one: bool) -> None:
    if pyproject is not None:
        (tmp_path / "pyproject.toml").write_text(pyproject)
    assert places.checkout_of(tmp_path / "app") == (tmp_path if is_one else None)
