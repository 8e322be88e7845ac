"""The house rules hold for the tree, and each detects its violation."""

from pathlib import Path

import pytest

from scripts import house


def test_tree_keeps_house_rules() -> None:
    assert [breach for path in house.tracked() for breach in house.breaches(path)] == []


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("long.py", '"""Doc."""\n' + "x = 1\n" * 300, "301 lines"),
        ("mute.py", "x = 1\n", "no module docstring"),
        ("__init__.py", "x = 1\n", "must be empty"),
        ("tall.py", '"""Doc."""\n\n\ndef f():\n' + "    x = 1\n" * 60, "f has 61 lines"),
        ("path.md", "see /ho" + "me/someone/x", "a path of one machine"),
        ("lock.json", '"resolved"' + ': "http://x"', "an address of a package registry"),
        ("app/web/api/x.py", '"""Doc."""\nrows = session.exec(query)\n', "a query"),
        ("tests/x.py", '"""Doc."""\npage.wait_for_' + "timeout(100)\n", "a fixed pause"),
        ("tests/x.py", '"""Doc."""\nassert time.monotonic() -' + " began < 5\n", "how long something takes"),
        ("page.html", '<p style="color:red">', "inline script or style"),
        ("page.html", "<script>x()</script>", "inline script or style"),
        ("page.html", '<a onclick="x()">', "inline script or style"),
    ],
)
def test_breach_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, told: str) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert any(told in breach for breach in house.breaches(path))
