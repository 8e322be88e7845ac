"""Web, worker and templates contain no kind's name: everything specific to a kind is in its `KindSpec`."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import house
from trainer.contract.kinds import data_sources, ordered

ROOMS = ("app/", "worker/", "templates/")
VENDORED = "app/static/vendor/"
ORDINARY = frozenset({"resume", "trace", "synthetic", "parameters", "losses"})
"""Names that are also ordinary words: they count only where a kind is meant."""
MEANT = r"""kinds?\b.{0,12}['"]%s['"]|ddp-audit run %s\b|kind=%s\b|['"]%s['"]\s*:\s*['"]\w{2,}['"]"""


def words() -> dict[str, re.Pattern[str]]:
    """Return forbidden words: names of kinds, of their packages, sources and headline checks."""
    own = [spec for spec in ordered() if spec.params.__module__.startswith("trainer.kinds.")]
    names = {spec.name for spec in own} | {spec.name.replace("-", "_") for spec in own}
    names |= {check for spec in own for check in spec.headline_checks}
    names |= {source.name.partition(":")[0] for _, source in data_sources() if source.fetched}
    distinct = {name: re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE) for name in names - ORDINARY}
    kinds = {spec.name for spec in own} & ORDINARY
    return distinct | {name: re.compile(MEANT.replace("%s", name)) for name in kinds}


def named(text: str) -> Iterator[str]:
    """Yield every such word of a text with its line."""
    for name, pattern in words().items():
        for match in pattern.finditer(text):
            yield f"{text.count(chr(10), 0, match.start()) + 1}: {name}"


def files() -> list[Path]:
    paths = {path.relative_to(house.ROOT).as_posix(): path for path in house.tracked()}
    return [path for name, path in paths.items() if name.startswith(ROOMS) and not name.startswith(VENDORED)]


def test_rooms_name_no_kind() -> None:
    assert len(files()) > 200
    found = [f"{path.relative_to(house.ROOT)}:{line}" for path in files() for line in named(_text(path))]
    assert found == []


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


@pytest.mark.parametrize(
    "text",
    [
        'RunRequest(kind="token-parity", preset="quick")',
        "from trainer.kinds.token_parity import params",
        'KIND: Final = "cifar"',
        "the newest passing cifar run",
        "`ddp-audit acquire cifar10` gets CIFAR-10",
        'kind == "resume"',
        "kind in ('resume',)",
        'href="/launch?kind=resume"',
        "ddp-audit run resume",
        'FIRST = {"resume": "parameters"}',
        'TELLING = ("gradient_parity", "sync_ratio")',
    ],
)
def test_named_kind_is_noticed(text: str) -> None:
    assert list(named(text))


@pytest.mark.parametrize(
    "text", ['client.post("/retry", {"resume": resume})', "fields={'resume': '1'}", "retry it without resume"]
)
def test_ordinary_words_are_free(text: str) -> None:
    assert not list(named(text))
