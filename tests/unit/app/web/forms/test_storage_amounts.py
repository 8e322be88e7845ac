"""Typed amounts of bytes."""

import pytest

from app.runs.errors import Refused
from app.web.forms.storage import PolicyForm, amount


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("0", 0),
        ("1000000", 1_000_000),
        ("500 GB", 500_000_000_000),
        ("20GiB", 20 * 2**30),
        ("1.5 MiB", 3 * 2**19),
        ("2k", 2000),
        ("3 Ti", 3 * 2**40),
    ],
)
def test_amounts_have_units(text: str, value: int | None) -> None:
    assert amount("most", text) == value


@pytest.mark.parametrize("text", ["much", "-1", "1 PB", "1e9", "GiB", "9999999999 TiB", "nan", "1,5 GB"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        amount("most", text)
    assert refusal.value.errors[0].field == "most"


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"days": "soon"}, "days"),
        ({"days": "nan"}, "days"),
        ({"newest": "1.5"}, "newest"),
        ({"newest": "inf"}, "newest"),
        ({"newest": "-1"}, "max_runs"),
        ({"days": "1", "kind": "nothing"}, "kind"),
        ({}, "max_age_days"),
    ],
)
def test_forms_name_the_wrong_field(form: dict[str, str], field: str) -> None:
    with pytest.raises(Refused) as refusal:
        PolicyForm(**form).policy()
    assert [error.field for error in refusal.value.errors] == [field]


def test_form_becomes_the_policy() -> None:
    policy = PolicyForm(days="90", newest=" 200 ", most="1 GiB", kind="cifar").policy()
    assert (policy.max_age_days, policy.max_runs, policy.max_bytes, policy.kind) == (90.0, 200, 2**30, "cifar")
