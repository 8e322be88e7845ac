"""A run's checks as JUnit XML, which continuous integration systems read: one test case per check."""

import re
import xml.etree.ElementTree as ET  # only written, never parsed
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from app.runs.documents import RunDocument
from app.runs.errors import Conflict
from app.runs.results.bounds import demand
from app.runs.states import State

FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent, not even escaped."""


def junit(run: RunDocument, result: Mapping[str, Any]) -> bytes:
    """Return the XML for a run document and its result, which is empty if there is none.

    A failed check is a `failure`. A check that could not be judged is an `error`, and so is a run without a result:
    with `skipped`, a pipeline would pass on an audit without a verdict. Raises Conflict while the run has not ended.
    """
    state = State(run.state)
    if not state.is_final:
        raise Conflict("not_final", f"run {run.id} is {state}; its checks are available when it has ended")
    checks = list(result.get("checks", [])) if state is State.SUCCEEDED else []
    cases = [_check(run, check) for check in checks] or [_unjudged(run)]
    failures = sum(case.find("failure") is not None for case in cases)
    errors = sum(case.find("error") is not None for case in cases)
    attributes = {
        "name": clean(f"ddp-audit.{run.kind}"),
        "tests": str(len(cases)),
        "failures": str(failures),
        "errors": str(errors),
        "skipped": "0",
        "time": f"{_seconds(run):.3f}",
    }
    if run.started_at:
        attributes["timestamp"] = str(run.started_at).rstrip("Z")
    suite = ET.Element("testsuite", attributes)
    suite.append(_properties(run, result))
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    xml: str = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{xml}\n'.encode()


def clean(text: str) -> str:
    """Return text with characters that XML cannot represent replaced."""
    return FORBIDDEN.sub("\ufffd", text)


def _seconds(run: RunDocument) -> float:
    if not run.started_at or not run.finished_at:
        return 0.0
    return (datetime.fromisoformat(run.finished_at) - datetime.fromisoformat(run.started_at)).total_seconds()


def _properties(run: RunDocument, result: Mapping[str, Any]) -> ET.Element:
    properties = ET.Element("properties")
    for name in ("id", "name", "preset", "state", "reason", "verdict", "device", "backend", "reproduce"):
        value = run.get(name)
        if value not in (None, ""):
            ET.SubElement(properties, "property", name=name, value=clean(str(value)))
    found = result.get("diagnosis")
    if found:
        names = ", ".join(cause["name"] for cause in found["causes"])
        value = f"{found['status']}: {names}" if names else found["status"]
        ET.SubElement(properties, "property", name="diagnosis", value=clean(value))
    return properties


def _check(run: RunDocument, check: Mapping[str, Any]) -> ET.Element:
    case = ET.Element("testcase", classname=clean(f"ddp-audit.{run.kind}"), name=clean(str(check["name"])))
    numbers = _numbers(check)
    text = clean("\n".join(part for part in (check["title"], numbers, check["detail"]) if part))
    if check["passed"] is None:
        ET.SubElement(
            case, "error", type="inconclusive", message=clean(f"could not be judged: {check['title']}")
        ).text = text
    elif not check["passed"]:
        ET.SubElement(case, "failure", type="check", message=clean(f"{check['title']}: {numbers}")).text = text
    else:
        ET.SubElement(case, "system-out").text = text
    return case


def _numbers(check: Mapping[str, Any]) -> str:
    unit = f" {check['unit']}" if check["unit"] else ""
    measured = "not measured" if check["measured"] is None else f"measured {check['measured']}{unit}"
    return measured if check["limit"] is None else f"{measured}, {demand(check, str)}{unit}"


def _unjudged(run: RunDocument) -> ET.Element:
    case = ET.Element("testcase", classname=clean(f"ddp-audit.{run.kind}"), name="run")
    message = f"run {run.id} ended {run.state} ({run.reason}) without a result"
    ET.SubElement(case, "error", type=str(run.reason or run.state), message=clean(message)).text = clean(
        str(run.diagnosis or message)
    )
    return case
