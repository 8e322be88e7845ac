"""Valid and invalid specifications of kinds, and the order of kinds."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from trainer.contract import kinds as registry
from trainer.contract.kinds import (
    Acquisition,
    Classifier,
    DataSource,
    KindSpec,
    classifiers,
    data_sources,
    default_kind,
    exercise_kind,
    kinds,
    quick_starts,
)
from trainer.contract.params import CommonParams


class GuestParams(CommonParams):
    """Parameters of a third-party kind."""

    data: str = "made"


def guest(name: str = "a-guest", **fields: Any) -> KindSpec:
    known: dict[str, Any] = {"title": "Guest", "description": "", "question": "", "params": GuestParams}
    return KindSpec(
        name=name, **{**known, "presets": {"quick": {}}, "preset_titles": {}, "stages": lambda _: [], **fields}
    )


@dataclass(frozen=True, slots=True)
class Point:
    """An entry point of an installed distribution."""

    value: str
    found: object

    def load(self) -> object:
        return self.found


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that installs kinds in addition to the product's, for one test."""

    def install(*specs: object) -> None:
        points = [Point(f"guest.params:KIND_{number}", spec) for number, spec in enumerate(specs)]
        monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "ddp_audit.kinds" else [])
        kinds.cache_clear()

    yield install
    monkeypatch.undo()
    kinds.cache_clear()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "No Name"}, "the name must match"),
        ({"presets": {"full": {}}}, "presets must contain quick; they are full"),
        ({"exercise": "hard"}, "exercise 'hard' is not among the presets: quick"),
        ({"reasons": {"Gone": "hang"}}, "reasons may be .*, not 'hang'"),
        ({"classifier": Classifier(network="os.system", model_file=lambda _: "")}, "package.module:function"),
        ({"acquisition": Acquisition(module="m", sources=(), parameter="file")}, "'file' is not a parameter: device"),
    ],
)
def test_specification_that_cannot_work(fields: dict[str, Any], told: str) -> None:
    assert guest().name == "a-guest"
    with pytest.raises(ValueError, match=told):
        guest(**fields)


def test_first_trend_follows_from_headlines() -> None:
    assert guest().first_trend == ""
    assert guest(headline_checks=("b", "a")).first_trend == "b"
    assert guest(headline_checks=("b", "a"), trend_check="a").first_trend == "a"


def test_source_covers_its_family() -> None:
    assert DataSource(name="made", title="").covers("made")
    assert not DataSource(name="made", title="").covers("made-up")
    assert DataSource(name="folder:NAME", title="").covers("folder:x")
    assert not DataSource(name="folder:NAME", title="").covers("folders")


def test_guest_comes_after_the_products_own(installed: Callable[..., None]) -> None:
    own = default_kind()
    exercise, trained, sources = exercise_kind(), list(classifiers()), data_sources()
    source = DataSource(name="stripes", title="stripes", fetched=True)
    spec = guest(
        quick_start="Looks quickly.",
        exercise="quick",
        classifier=Classifier(network="guest.net:build", model_file=lambda _: "model.pt"),
        acquisition=Acquisition(module="guest.get", sources=(source,)),
    )
    installed(spec)
    assert next(iter(kinds())) == "a-guest"
    assert default_kind() == own
    assert quick_starts() == [own, spec]
    assert exercise_kind() == exercise
    assert list(classifiers()) == [*trained, "a-guest"]
    assert [item for _, item in data_sources()] == [*(item for _, item in sources), source]


def test_guest_takes_no_name_that_is_taken(installed: Callable[..., None]) -> None:
    taken = default_kind().name
    installed(guest(taken))
    with pytest.raises(ValueError, match=f"guest.params:KIND_0: the kind '{taken}' already exists"):
        kinds()
    installed(guest("b-guest"), guest("b-guest"))
    with pytest.raises(ValueError, match="KIND_1: the kind 'b-guest' already exists"):
        kinds()


def test_entry_point_must_be_a_kind(installed: Callable[..., None]) -> None:
    installed({"name": "dict"})
    with pytest.raises(TypeError, match="a kind must be a KindSpec, not a dict"):
        kinds()


def test_own_kinds_are_whole(installed: Callable[..., None]) -> None:
    installed()
    assert len(kinds()) >= 3
    assert default_kind().quick_start
    assert exercise_kind() is not None
    for name, spec in kinds().items():
        assert spec.name == name
        assert spec.headline_checks
        assert replace(spec) == spec
        assert set(spec.preset_titles) == set(spec.presets)


def test_code_that_kinds_name_is_there() -> None:
    named = 0
    for spec in kinds().values():
        modules = [spec.verifier, spec.acquisition.module if spec.acquisition else ""]
        entries = [stage.entry for stage in spec.stages(spec.params()) if stage.launcher != "command"]
        entries += [spec.classifier.network] if spec.classifier else []
        for module in filter(None, modules):
            assert callable(importlib.import_module(module).main)
        for entry in entries:
            module, function = entry.split(":")
            assert callable(getattr(importlib.import_module(module), function))
        named += len(entries) + len([module for module in modules if module])
    assert named > 10
