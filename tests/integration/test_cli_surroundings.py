"""Commands as real processes in unusual surroundings: arguments, settings, locales and streams."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.db import create_database_engine
from app.settings import Settings
from tests.support.cli import COMMAND, environment
from tests.support.pages_data import fill, write_log

Answer = subprocess.CompletedProcess[bytes]
BRIEFCASE = "\N{BRIEFCASE}"
OUTPUT_ENCODINGS = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
PLAIN_LOCALE = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"))
    engine: Engine = create_database_engine(settings)
    ids = fill(settings, engine)
    engine.dispose()
    write_log(settings, ids["passed"], "distributed", 0, f"{BRIEFCASE} packed\n" * 20_000)
    return settings.data_dir, ids


def ask(data_dir: Path | bytes, *words: str | bytes, env: dict[Any, Any] | None = None) -> Answer:
    """Run a command to its end."""
    given: dict[Any, Any] = environment(Path("unused"), {}) | {"DDP_AUDIT_DATA_DIR": data_dir} | (env or {})
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run([str(COMMAND), *words], env=given, check=False, timeout=120, text=False, **pipes)


def shell(data_dir: Path, script: str) -> Answer:
    """Run a line of bash in which `$C` is the command."""
    given = environment(data_dir, {}) | {"C": str(COMMAND)}
    return subprocess.run(["bash", "-c", script], env=given, check=False, timeout=120, capture_output=True)


@pytest.mark.parametrize("env", [OUTPUT_ENCODINGS, PLAIN_LOCALE])
def test_emoji_in_a_log_with_an_ascii_output(data: tuple[Path, dict[str, int]], env: dict[str, str]) -> None:
    done = ask(data[0], "logs", str(data[1]["passed"]), env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert done.stdout.isascii() or env is PLAIN_LOCALE
    assert (rb"\U0001f4bc packed" in done.stdout) or (env is PLAIN_LOCALE and BRIEFCASE.encode() in done.stdout)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((b"show", b"\xff"), b"argument 2 is not valid UTF-8: \\xff"),
        ((b"run", b"token-parity", b"--name", b"caf\xe9", b"--json"), b"argument 4 is not valid UTF-8: caf\\xe9"),
        ((b"\xfe\xff",), b"argument 1 is not valid UTF-8: \\xfe\\xff"),
        ((b"list", b"--tag=\xc3("), b"argument 2 is not valid UTF-8: --tag=\\xc3("),
    ],
)
def test_argument_that_is_no_text(data: tuple[Path, dict[str, int]], words: Sequence[bytes], what: bytes) -> None:
    done = ask(data[0], *words)
    assert done.returncode == 2
    assert done.stderr == b"ddp-audit: " + what + b"\n"
    assert (what.replace(b"\\", b"\\\\") in done.stdout) == (b"--json" in words)


@pytest.mark.parametrize("env", [{}, PLAIN_LOCALE])
def test_argument_beyond_ascii_is_text(data: tuple[Path, dict[str, int]], env: dict[str, str]) -> None:
    name = f"caf\N{LATIN SMALL LETTER E WITH ACUTE} {BRIEFCASE}"
    assert ask(data[0], "edit", str(data[1]["failed"]), "--name", name.encode(), env=env).returncode == 0
    done = ask(data[0], "show", str(data[1]["failed"]), "--json")
    assert f'"name":"{name}"'.encode() in done.stdout


def test_full_output_of_a_whole_process(data: tuple[Path, dict[str, int]]) -> None:
    for script in (
        "$C list >/dev/full",
        "$C list --json >/dev/full",
        "$C --version >/dev/full",
        "$C --help >/dev/full",
    ):
        done = shell(data[0], script)
        assert done.returncode == 3
        assert done.stderr == b"ddp-audit: standard output cannot be written: No space left on device\n"
    assert shell(data[0], "$C show 999 >/dev/full").returncode == 6


@pytest.mark.parametrize(
    ("words", "code"), [("logs {passed}", 0), ("export {passed}", 0), ("result {passed}", 0), ("result {broken}", 1)]
)
def test_reader_that_leaves_changes_no_code(data: tuple[Path, dict[str, int]], words: str, code: int) -> None:
    done = shell(data[0], f"$C {words.format(**data[1])} | head -1; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (code, b"")
    assert done.stdout
    assert done.stdout.count(b"\n") <= 1  # a document may be one long line without an end


def test_closed_streams(data: tuple[Path, dict[str, int]]) -> None:
    told = b"ddp-audit: standard output cannot be written: Bad file descriptor\n"
    done = shell(data[0], "$C list >&-")
    assert (done.returncode, done.stderr) == (3, told)
    usual = shell(data[0], "$C list")
    assert usual.returncode == 0
    for redirected in ("<&-", "2>&-", "2>/dev/full", "<&- 2>&-"):
        done = shell(data[0], f"$C list {redirected}")
        assert (done.returncode, done.stdout, done.stderr) == (0, usual.stdout, b"")
    for redirected in ("2>&-", "2>/dev/full", ">&- 2>&-", "<&- >&- 2>&-"):
        assert shell(data[0], f"$C show 999 {redirected}").returncode == 6
    assert shell(data[0], "$C edit 1 --notes - <&-").returncode in {0, 2}
    assert shell(data[0], "printf 'caf\\xe9' | $C edit 1 --notes -").returncode == 2


@pytest.mark.parametrize(
    ("env", "code"),
    [
        ({"DDP_AUDIT_PORT": "9", "DDP_AUDIT_HOST": b"\xff"}, 2),
        ({"DDP_AUDIT_PORT": "9", "DDP_AUDIT_HOST": "a b\n"}, 2),
        ({"DDP_AUDIT_PORT": "nine"}, 2),
        ({"DDP_AUDIT_PORT": b"\xff"}, 2),
        ({"DDP_AUDIT_TOKEN": b"\xff", "DDP_AUDIT_PORT": "9"}, 2),
        ({"DDP_AUDIT_LOG_FORMAT": b"\xff"}, 2),
        ({"TERM": b"\xff", "COLUMNS": "none", "LINES": "", "NO_COLOR": b"\xff"}, 0),
        ({"COLUMNS": "0"}, 0),
        ({"COLUMNS": "1"}, 0),
        ({"COLUMNS": "999999999999999999999"}, 0),
        ({"TZ": "No/Such", "LANG": "xx_YY.none", "HOME": "", "PATH": ""}, 0),
        ({"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}, 0),
        ({b"\xff": b"\xff", "DDP_AUDIT_NOTHING": b"\xff"}, 0),
    ],
)
def test_odd_environment(data: tuple[Path, dict[str, int]], env: dict[Any, Any], code: int) -> None:
    done = ask(data[0], "list", env=env)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert (done.stderr != b"") == (code == 2)
    for name in (str(name).removeprefix("DDP_AUDIT_") for name in env if code == 2):
        if name in {"HOST", "TOKEN", "LOG_FORMAT"}:
            assert name in done.stderr.decode().upper()


def test_data_directory_may_have_any_name(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/\xff?%20 \xf0\x9f\x92\xbc"
    done = ask(place, "list", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    made = Path(os.fsdecode(place))
    assert list(tmp_path.iterdir()) == [made]
    assert made / "ddp-audit.db" in made.iterdir()


def test_acquisition_that_breaks_off_is_no_verdict(data: tuple[Path, dict[str, int]]) -> None:
    broken = f"{data[0]}/file"
    Path(broken).write_text("no directory")
    for words in (("acquire", "cifar10"), ("acquire", "cifar10", "--json")):
        done = ask(data[0], *words, env={"DDP_AUDIT_DATASETS_DIR": f"{broken}/sets"})
        assert done.returncode == 3, done.stdout
        assert b"the acquisition ended and gave no answer" in done.stderr


def test_figures_of_a_damaged_result_are_no_verdict(data: tuple[Path, dict[str, int]]) -> None:
    result = data[0] / "runs" / str(data[1]["broken"]) / "result.json"
    whole = result.read_text()
    try:
        result.write_text(whole.replace('"panels"', '"pannels"', 1))
        done = ask(data[0], "figures", str(data[1]["broken"]))
    finally:
        result.write_text(whole)
    assert done.returncode not in {0, 1}
    assert b"Traceback" not in done.stderr


def test_interpreter_that_cannot_spell_writes_its_error(data: tuple[Path, dict[str, int]]) -> None:
    code = "import sys; from app.cli.main import main; sys.argv[1:] = ['show', sys.argv[1]]; main()"
    argv = [sys.executable, "-c", code, BRIEFCASE]
    done = subprocess.run(
        argv, env=environment(data[0], OUTPUT_ENCODINGS), capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.isascii()
    assert b"Traceback" not in done.stderr
