"""Classes of a folder source: folder names, sorted; look-alike and foreign names are distinguished or refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.folder_source import COMPOSED, DECOMPOSED, SIZES, fill, litter, problems, save
from trainer.contract.leftovers import is_leftover
from trainer.kinds.cifar.data.acquire import acquire
from trainer.kinds.cifar.data.class_names import case_twins, looks
from trainer.kinds.cifar.data.folders import list_folder
from trainer.kinds.cifar.data.pool import open_pool
from trainer.kinds.cifar.data.sources import parse_source
from trainer.kinds.cifar.params import CifarParams

ANGLES = ["0", "90", "180", "270"]


def classes(datasets: Path) -> tuple[str, ...]:
    return list_folder(parse_source("folder:mine"), datasets).classes


def test_class_numbers_follow_sorted_names(tmp_path: Path) -> None:
    fill(tmp_path, (str(number) for number in range(11)))
    assert problems(tmp_path) == {}
    assert classes(tmp_path) == ("0", "1", "10", "2", "3", "4", "5", "6", "7", "8", "9")
    pool = open_pool(CifarParams.model_validate(SIZES), tmp_path)
    images, labels = pool.test.fetch(np.arange(11), lambda _: None)
    assert labels.tolist() == list(range(11))
    assert images[:, 0, 0, 0].tolist() == [20 * int(name) for name in pool.classes]


def test_class_missing_in_test_is_named(tmp_path: Path) -> None:
    """Counted by position, every class after the missing one would get its neighbour's number."""
    fill(tmp_path, ANGLES, ["0", "90", "270"])
    assert "only in train ['180'], only in test none; both need the same folders" in problems(tmp_path)["data"]
    save(tmp_path / "mine" / "test" / "180" / "0.png", 1)
    assert problems(tmp_path) == {}


def test_empty_class_is_named(tmp_path: Path) -> None:
    source = fill(tmp_path, ANGLES)
    for split in ("test", "train"):
        (source / split / "45").mkdir()
        (source / split / "45" / "Thumbs.db").write_bytes(b"x")
    assert "class folder mine/train/45 is empty" in problems(tmp_path)["data"]
    save(source / "train" / "45" / "0.png", 1)
    assert "class folder mine/test/45 is empty" in problems(tmp_path)["data"]


def test_leftovers_are_nobodys(tmp_path: Path) -> None:
    source = fill(tmp_path, ["cat", "dog"])
    plain = list_folder(parse_source("folder:mine"), tmp_path)
    litter(source)
    assert problems(tmp_path) == {}
    assert list_folder(parse_source("folder:mine"), tmp_path) == plain
    assert "6 training and 2 test images of 2 classes" in acquire("folder:mine", tmp_path).text
    save(source / "train" / "macosx" / "0.png", 1)
    assert "only in train ['macosx']" in problems(tmp_path)["data"]


@pytest.mark.parametrize("name", [".x", "__MACOSX", "THUMBS.DB", "Desktop.ini", "$RECYCLE.BIN", "lost+found"])
def test_leftover_names(name: str) -> None:
    assert is_leftover(name)
    assert not is_leftover(f"a{name}")


def test_composed_and_decomposed_show_code_points(tmp_path: Path) -> None:
    fill(tmp_path, ["A", COMPOSED], ["A", DECOMPOSED])
    text = problems(tmp_path)["data"]
    assert f"only in train ['{COMPOSED}' (U+00C9)]" in text
    assert f"only in test ['{DECOMPOSED}' (U+0045 U+0301)]" in text
    assert "look alike" in text
    (tmp_path / "mine" / "test" / DECOMPOSED).rename(tmp_path / "mine" / "test" / COMPOSED)
    assert problems(tmp_path) == {}
    assert classes(tmp_path) == ("A", COMPOSED)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (COMPOSED, DECOMPOSED),
        ("cat", "cat "),
        ("cat", "ca\u200bt"),
        ("cat", "\ufeffcat"),
        ("big cat", "big\u00a0cat"),
        ("\u212bngstrom", "\u00c5ngstrom"),
    ],
)
def test_classes_that_look_alike_are_refused(one: str, other: str, tmp_path: Path) -> None:
    fill(tmp_path, ["A", one, other])
    text = problems(tmp_path)["data"]
    assert "look alike; rename one of them" in text
    assert all(" ".join(f"U+{ord(sign):04X}" for sign in name) in text for name in (one, other))
    assert "in mine/train" in text


@pytest.mark.parametrize("names", [("E", COMPOSED), ("cat", "cats"), ("x2", "x²"), ("a b", "ab"), ("1", "01")])
def test_classes_that_differ_are_accepted(names: tuple[str, ...], tmp_path: Path) -> None:
    fill(tmp_path, names)
    assert problems(tmp_path) == {}
    assert classes(tmp_path) == tuple(sorted(names))


def test_case_makes_two_classes(tmp_path: Path) -> None:
    fill(tmp_path, ["cat", "Cat"])
    assert problems(tmp_path) == {}
    assert classes(tmp_path) == ("Cat", "cat")
    assert case_twins(classes(tmp_path)) == [("Cat", "cat")]
    assert case_twins(["cat", "cats", COMPOSED, "e"]) == []
    assert looks("Cat") != looks("cat")


def test_case_between_splits_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, ["cat", "dog"], ["Cat", "dog"])
    assert "only in train ['cat'], only in test ['Cat']" in problems(tmp_path)["data"]


def test_name_of_no_text_is_refused(tmp_path: Path) -> None:
    source = fill(tmp_path, ["cat", "dog"])
    for split in ("train", "test"):
        os.rename(source / split / "dog", os.fsencode(source / split) + b"/d\xffg")  # noqa: PTH104
    text = problems(tmp_path)["data"]
    assert "'d\\\\xffg' has a name that is not UTF-8" in text
    text.encode()


def test_unreadable_folder_is_refused(tmp_path: Path) -> None:
    """A link to itself can be neither listed nor inspected."""
    source = fill(tmp_path, ["cat", "dog"])
    (source / "train" / "horse").symlink_to("horse")
    assert "mine/train/horse cannot be read" in problems(tmp_path)["data"]
