"""The newest verdict of a kind as a small SVG picture, for a README or a dashboard."""

from html import escape
from typing import Final

from sqlalchemy import select
from sqlmodel import Session, col

from app.runs.errors import NotFound
from app.runs.models import Run
from trainer.contract.kinds import kinds

COLOURS: Final = {"pass": "#1a7f37", "fail": "#c62828", "inconclusive": "#8a5a00"}
"""White text on each has a contrast of at least 4.5."""
NONE_COLOUR: Final = "#5c6570"
WIDTHS: Final = {3.06: "ijl", 3.5: " ", 3.9: "f-", 4.4: "rt", 6.0: "cksvxyz_", 9.0: "w", 10.7: "m"}
"""Pixels of characters in DejaVu Sans at 11 px, rounded; `textLength` then makes the text fit in any font."""
USUAL_WIDTH: Final = 6.9


def newest_verdict(session: Session, kind: str) -> str | None:
    """Return the verdict of the newest judged run of a kind, None before the first. Raises NotFound."""
    if kind not in kinds():
        raise NotFound("unknown_kind", f"{kind[:80]!r} is not a kind; kinds are {', '.join(kinds())}")
    query = (
        select(col(Run.verdict))
        .where(col(Run.kind) == kind, col(Run.verdict).is_not(None), col(Run.deleting).is_(False))
        .order_by(col(Run.id).desc())
        .limit(1)
    )
    return session.scalar(query)


def badge(label: str, verdict: str | None) -> str:
    """Return the SVG."""
    word = verdict or "no verdict"
    left, right = (round(_length(text)) + 12 for text in (label, word))
    title = escape(f"{label}: {word}", quote=True)
    colour = COLOURS.get(word, NONE_COLOUR)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img"
 aria-label="{title}">
<title>{title}</title>
<clipPath id="round"><rect width="{left + right}" height="20" rx="3"/></clipPath>
<g clip-path="url(#round)"><rect width="{left}" height="20" fill="#3d444d"/>
<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>
<g fill="#fff" font-family="DejaVu Sans,Verdana,sans-serif" font-size="11" text-anchor="middle">
<text x="{left / 2}" y="14" textLength="{left - 12}">{escape(label)}</text>
<text x="{left + right / 2}" y="14" textLength="{right - 12}">{escape(word)}</text></g>
</svg>
"""


def _length(text: str) -> float:
    known = {letter: width for width, letters in WIDTHS.items() for letter in letters}
    return sum(known.get(letter, USUAL_WIDTH) for letter in text)
