"""The diagnosis of a result in the output of commands."""

from typing import Any

from app.cli.output import say


def say_diagnosis(result: dict[str, Any]) -> None:
    """Print which mistake explains the gradients, if the result has a diagnosis."""
    found = result.get("diagnosis")
    if not found:
        return
    names = ", ".join(cause["name"] for cause in found["causes"])
    say(f"diagnosis: {found['status']}{f': {names}' if names else ''}")
    for cause in found["causes"]:
        say(f"{cause['name']}: {cause['explanation']}")
    if len(found["alternatives"]) > 1:
        say(f"the same gradients come from {' or from '.join(' with '.join(one) for one in found['alternatives'])}")
    if found["status"] == "unexplained":
        for sentence in found["reasoning"]:
            say(f"- {sentence}")
    if found["suggestion"]:
        say(f"suggestion: {found['suggestion']}")
