"""Names of class folders: names that look alike are shown with code points, or rejected."""

import os
import unicodedata
from collections.abc import Callable, Iterable, Sequence


def looks(name: str) -> str:
    """Return the visible form of a name: accents composed, no invisible characters, single spaces within."""
    visible = "".join(sign for sign in unicodedata.normalize("NFC", name) if unicodedata.category(sign) != "Cf")
    return " ".join(visible.split())


def shown(name: str) -> str:
    """Return a name in quotes, with its code points."""
    return f"{name!r} ({' '.join(f'U+{ord(sign):04X}' for sign in name)})"


def listed(names: Iterable[str], alike: Sequence[str] = ()) -> str:
    """Return names as a list; those outside ASCII, and those that look like one of `alike`, with their code points."""
    seen = {looks(name) for name in alike}
    texts = [repr(name) if name.isascii() and looks(name) not in seen else shown(name) for name in names]
    return f"[{', '.join(texts)}]" if texts else "none"


def name_problem(names: Sequence[str]) -> str | None:
    """Return why these names cannot be distinguished or stored, with what would work; None if they can."""
    for name in names:
        if not _is_text(name):
            return f"class folder {readable(name)!r} has a name that is not UTF-8; rename it"
    for one, other in _twins(names, looks):
        return (
            f"class folders {shown(one)} and {shown(other)} look alike; rename one of them, or put the images of "
            "both into one folder"
        )
    return None


def difference(train: Sequence[str], test: Sequence[str]) -> str | None:
    """Return how the classes of the two splits differ, None if they are the same."""
    only_train = sorted(set(train) - set(test))
    only_test = sorted(set(test) - set(train))
    if not only_train and not only_test:
        return None
    text = f"only in train {listed(only_train, only_test)}, only in test {listed(only_test, only_train)}"
    seen = {looks(name) for name in only_train} & {looks(name) for name in only_test}
    if not seen:
        return f"{text}; both need the same folders"
    return (
        f"{text}; names that look alike here have different code points (an accent composed or decomposed, an "
        "invisible character), so rename one of each pair"
    )


def case_twins(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of names that differ only in upper and lower case."""
    return _twins(names, lambda name: looks(name).casefold())


def readable(name: str) -> str:
    """Return a file name as valid text: bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _is_text(name: str) -> bool:
    return os.fsencode(name).decode(errors="ignore") == name


def _twins(names: Sequence[str], key: Callable[[str], str]) -> list[tuple[str, str]]:
    first: dict[str, str] = {}
    return [(twin, name) for name in names if (twin := first.setdefault(key(name), name)) != name]
