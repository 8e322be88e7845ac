"""Texts are in the words of this field: the patterns of a translation are kept out, each with what to write instead."""

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts import house

OUTSIDE = ("docs/files.md", "tests/house/test_wording.py")
"""Generated from docstrings, and this file, whose examples are what it forbids."""
FIELD, TAG = re.compile(r"\{[^{}]*\}"), re.compile(r"<[a-z][^<>]*>")
ATTRIBUTE = re.compile(r"\s(?!(?:title|aria-label|placeholder|alt|value)\b)[a-z][\w:.-]*(?:=\"[^\"]*\")?(?=[\s>/])")
"""Code in f-strings and tags: fields, and attributes that are not shown to readers."""
NAME = re.compile(r"[a-z0-9_.\[\]-]*")
"""A literal like this is a key or a name, not a text."""
COMMENT, QUOTES = re.compile(r"^#+\s?"), re.compile(r"^[a-zA-Z]*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$")
IGNORED = frozenset({tokenize.NL, tokenize.INDENT, tokenize.DEDENT})


@dataclass(frozen=True, slots=True)
class Habit:
    """A pattern (a space stands for any white space), what to write instead, and an example of each."""

    pattern: str
    better: str
    bad: str
    good: str

    def found(self, text: str) -> Iterator[re.Match[str]]:
        """Yield every place of the pattern in a text, whatever its case."""
        yield from re.finditer(self.pattern.replace(" ", r"\s+"), text, re.IGNORECASE)


HABITS = (
    Habit(
        r"(?<!there\s)\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|one\b|other\b|such\b)\w+",
        "is not a …",
        "A folder without a manifest is no checkpoint.",
        "There is no checkpoint, and the run is no longer owned by this worker.",
    ),
    Habit(r"\b(?:goes|go|going|went) on\b", "continues", "The training goes on.", "The training continues."),
    Habit(r"\banew\b|\bafresh\b", "again", "The files are read anew.", "The files are read again."),
    Habit(
        r"\b(?:an? (?:\w+ ){1,2}|\w+s )of (?:its|their) own\b",
        "its own …, or: a separate …",
        "It runs in a process of its own.",
        "It runs in its own process.",
    ),
    Habit(r"\bunder way\b", "active, or: running", "A run is under way.", "A run is active."),
    Habit(r"\basked for\b", "requested", "BF16 was asked for.", "BF16 was requested."),
    Habit(r"\btold\b", "reported, or: distinguished", "The end is told.", "The end is reported."),
    Habit(r"\bbeside\b", "next to", "It lies beside the plan.", "It is next to the plan, besides others."),
    Habit(r"\bwhomever\b", "any …", "A GPU in use by whomever.", "A GPU in use by any process."),
    Habit(
        r"\bstands (?:on|beside|behind|above|below|at|there)\b|\bstands(?= \w+ed\b)",
        "is",
        "The result stands on gloo.",
        "The class stands in for Popen.",
    ),
    Habit(r"\bticked\b", "selected", "Cancel the ticked runs.", "Cancel the selected runs."),
    Habit(r"\bhand(?:s|ed)? on\b", "share, or: pass on", "The code is handed on.", "The code is passed on."),
    Habit(
        r"\b(?:break|breaks|broke|broken) off\b",
        "is interrupted",
        "A download that breaks off leaves none.",
        "An interrupted download leaves no backup.",
    ),
    Habit(r"\bin good order\b", "cleanly", "All left in good order.", "All of them shut down cleanly."),
    Habit(r"\blooked at yet\b", "no … yet", "Not looked at yet", "No samples yet"),
    Habit(
        r"\bno (?:entry|entries|run|runs|line|lines) fits?\b", "no matching …", "No entry fits", "No matching entries"
    ),
    Habit(
        r"\bthe one\b[^.;]{1,60}\bthe other\b",
        "the names of both",
        "The one is counted by the hook, the other by the profiler.",
        "The hook counts the first, the profiler the second.",
    ),
    Habit(r"\b(?:write|writes|written|wrote) down\b", "records", "It writes down the end.", "It records the end."),
    Habit(r"\b(?:ended|ends|end) well\b", "succeeded", "Every stage ended well.", "Every stage succeeded."),
    Habit(
        r"\b(?:kept|keep|keeps|put|written|unpacked|unpacks) aside\b",
        "stored separately, or: a temporary file",
        "A torn line is kept aside.",
        "An incomplete line is stored as malformed.",
    ),
    Habit(
        r"\bwhat (?:may|would|can|could|should|must) go\b",
        "what can be removed",
        "It shows what would go.",
        "It shows what would be removed.",
    ),
    Habit(r"\blets? go of\b|\blet go of\b", "releases", "It lets go of its leases.", "It releases its leases."),
    Habit(r"\bof today\b", "current", "No process of today is touched.", "No current process is touched."),
    Habit(r"\banother than\b", "a different … than", "Another than loopback", "Any non-loopback address"),
    Habit(
        r"\bno (?:claim|promise|proof) of\b",
        "says nothing about, or: does not guarantee",
        "Accuracy is no claim of quality.",
        "Accuracy says nothing about quality.",
    ),
    Habit(r"\bthings?\b", "the name of what is meant", "It cleans up things.", "It cleans up nothing."),
    Habit(r"\bwithout a break\b", "uninterrupted", "It trains without a break.", "It trains uninterrupted."),
    Habit(r"\bbelongs? to nothing\b", "orphaned", "What belongs to nothing", "Orphaned files"),
    Habit(
        r"\b(?:lies|lie|lay) (?:in|on|below|beside|under|outside|next)\b",
        "is stored in",
        "The database lies on a local disk.",
        "The database is on a local disk.",
    ),
    Habit(r"\bspeaks? (?:of|for|against)\b", "refers to", "What the row speaks of", "What the row refers to"),
    Habit(r"\b(?:does|do) not suffice\b", "is not enough", "The limit does not suffice.", "The limit is not enough."),
    Habit(r"\b(?:made|makes?) good\b", "is compensated", "The division is made good.", "It is compensated."),
    Habit(r"\bthe begin\b", "the beginning", "At the begin of a line", "At the beginning of a line"),
    Habit(r"\bmisshapen\b", "of the wrong shape", "A misshapen tensor", "A tensor of the wrong shape"),
    Habit(r"\bgrows? no more\b", "no longer grows", "The file grows no more.", "The file no longer grows."),
    Habit(r"\b(?:what|whatever) became of\b", "the outcome of", "What became of each run", "The outcome of each run"),
    Habit(r"\bcomes? up\b|\bcame up\b", "starts", "The service came up.", "The service started."),
)


def pieces(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of what is read as text: all of a document, literals and comments of a Python file."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from _of_python(text)
    elif path.suffix == ".html":
        yield 1, TAG.sub(lambda tag: ATTRIBUTE.sub(lambda code: "\n" * code.group().count("\n"), tag.group()), text)
    else:
        yield 1, text


def _of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield adjacent literals as one text, and adjacent comment lines as one."""
    line, kind, parts = 0, "", list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in IGNORED:
            continue
        this = tokenize.tok_name[token.type]
        this = "STRING" if this.startswith("FSTRING") else this
        if this != kind or this not in {"STRING", "COMMENT"}:
            if not NAME.fullmatch("".join(parts)):
                yield line, "".join(parts)
            line, kind, parts = token.start[0], this, []
        if this == "STRING":
            parts.append(_literal(token.string))
        elif this == "COMMENT":
            parts.append(COMMENT.sub("", token.string) + "\n")


def _literal(source: str) -> str:
    """Return the text of a literal, without the fields of an f-string."""
    formatted = "f" in source[: source.index(source[-1])].lower()
    return FIELD.sub("{}", QUOTES.sub("", source)) if formatted else QUOTES.sub("", source)


def breaches(path: Path, name: str) -> Iterator[str]:
    """Yield every habit found in a file, with its line and the better wording."""
    for begin, text in pieces(path):
        for habit in HABITS:
            for match in habit.found(text):
                words = " ".join(match.group().split())
                line = begin + text.count("\n", 0, match.start())
                yield f"{name}:{line}: {words!r}: write {habit.better!r}"


def checked() -> list[tuple[Path, str]]:
    named = [(path, path.relative_to(house.ROOT).as_posix()) for path in house.tracked()]
    return [(path, name) for path, name in named if path.suffix in {".md", ".html", ".py"} and name not in OUTSIDE]


def test_texts_are_plain_english() -> None:
    assert len(checked()) > 700
    assert [breach for path, name in checked() for breach in breaches(path, name)] == []


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.better)
def test_habit_is_caught_and_its_replacement_is_not(habit: Habit) -> None:
    assert list(habit.found(habit.bad))
    assert not [match.group() for other in HABITS for match in other.found(habit.good)]


@pytest.mark.parametrize(
    "source",
    [
        '"""Reads them\nanew."""\n',
        "x = 1\n# reads them\n# anew\n",
        'raise ValueError("it goes "\n    "on")\n',
        'text = f"it goes {x} on; all is told"\n',
        "title = 'Not looked at yet'\n",
    ],
)
def test_python_is_read_as_texts(tmp_path: Path, source: str) -> None:
    path = tmp_path / "x.py"
    path.write_text(source)
    assert list(breaches(path, "x.py"))


def test_names_and_documents(tmp_path: Path) -> None:
    code, page = tmp_path / "x.py", tmp_path / "x.md"
    code.write_text("told, things = 1, 'told'\nshown = f\"{told}: {things}\"\n")
    page.write_text("one\n\nIt goes\non.\n")
    assert list(breaches(code, "x.py")) == []
    assert list(breaches(page, "x.md")) == ["x.md:3: 'goes on': write 'continues'"]


def test_templates_are_read_without_their_code(tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    page.write_text('<p class="ticked" data-ticked\n id="told">One</p>\n<b title="Ticked runs">ticked</b>\n')
    assert [breach.split(": write")[0] for breach in breaches(page, "x")] == ["x:3: 'Ticked'", "x:3: 'ticked'"]
