"""Event lines: valid ones are stored unchanged, all others are stored as malformed with reason and position."""

import json
import math

import pytest

from app.runs.telemetry.packing import NULL_BITS, pack
from worker.lines import KEPT_CHARACTERS, Batch, Heard

GOOD = b'{"seq":0,"t":1.5,"type":"phase","phase":"train","step":3}'


def read(*lines: bytes, offset: int = 0) -> tuple[Batch, Heard]:
    batch, heard = Batch(), Heard()
    batch.read(b"\n".join(lines), offset, heard)
    return batch, heard


def event(event_type: str, **fields: object) -> bytes:
    return json.dumps({"seq": 0, "t": 2.0, "type": event_type, **fields}).encode()


def test_line_is_stored_unchanged() -> None:
    odd = b'{"type":"message", "t":1,"seq":7 ,"level":"info","text":"<b>\\u00e9</b>","more":[1.10]}'
    batch, _ = read(odd)
    assert batch.events == [("message", odd.decode())]
    assert not batch.malformed


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{not json", "not JSON"),
        (b"[1,2]", "not a JSON object"),
        (b'{"seq":0,"t":1,"type":"metrics","step":1,"values":{"a":NaN}}', "not JSON"),
        (b'{"seq":0,"t":1,"type":"party"}', "unknown event type 'party'"),
        (b'{"seq":0,"t":1,"type":["end"]}', "unknown event type"),
        (b'{"seq":0,"t":1}', "unknown event type None"),
        (b'{"seq":0,"t":1,"type":"progress","done":1}', "lacks total, unit"),
        (b'{"seq":"0","t":1,"type":"end"}', "seq must be an integer"),
        (b'{"seq":true,"t":1,"type":"end"}', "seq must be an integer"),
        (b'{"seq":0,"t":"now","type":"end"}', "t a number"),
        (b'{"seq":0,"t":1e300,"type":"end"}', "not a time"),
        (b'{"seq":0,"t":1,"type":"metrics","step":1,"values":[1]}', "must be an object"),
        (b'{"seq":0,"t":1,"type":"metrics","step":1,"values":{"a":"many"}}', "'a' is not a number"),
        (event("metrics", step=1, values={"a": 1, "b" * 501: 1}), "at most 500 characters"),
        (b'{"seq":0,"t":1,"type":"metrics","step":1,"values":{"a":true}}', "'a' is not a number"),
        (b'{"seq":0,"t":1,"type":"phase","phase":"x","step":1e300}', "step must be an integer"),
        (b'{"seq":0,"t":1,"type":"phase","phase":7,"step":1}', "phase must be text"),
        (b'{"seq":0,"t":1,"type":"progress","done":"1","total":2,"unit":"u"}', "done and total"),
        (b'{"seq":0,"t":1,"type":"message","level":"info","text":"\xff"}', "not JSON"),
    ],
)
def test_bad_line_is_kept_aside(line: bytes, why: str) -> None:
    batch, heard = read(GOOD, line, GOOD, offset=100)
    assert len(batch.events) == 2
    [(offset, text, said)] = batch.malformed
    assert offset == 100 + len(GOOD) + 1
    assert text == line.decode(errors="replace")
    assert why in said
    assert heard.step == 3


def test_non_finite_and_null_stay_apart() -> None:
    values = {"a": "NaN", "b": None, "c": "-Infinity", "d": 1}
    batch, _ = read(event("metrics", step=4, values=values))
    points = {key: points.values[0] for key, points in batch.metrics.items()}
    assert math.isnan(points["a"])
    assert pack([points["a"]]) != NULL_BITS
    assert pack([points["b"]]) == NULL_BITS
    assert (points["c"], points["d"]) == (-math.inf, 1)


def test_series_remember_their_first_event() -> None:
    batch, heard = read(
        event("message", level="info", text="x"),
        event("metrics", step=1, values={"a": 1.0}),
        event("metrics", step=2, values={"a": 2.0, "b": 5}),
    )
    assert (batch.metrics["a"].first, batch.metrics["a"].steps, batch.metrics["a"].values) == (1, [1, 2], [1, 2])
    assert batch.metrics["b"].first == 2
    assert heard.step == 2


def test_rank_state_follows_events() -> None:
    start = event("start", pid=77, host="h", device="cpu", backend="gloo", world_size=2, versions={})
    _, heard = read(start, event("phase", phase="train", step=5), event("progress", done=5, total=10, unit="updates"))
    assert (heard.pid, heard.host, heard.device, heard.phase, heard.step) == (77, "h", "cpu", "train", 5)
    assert heard.progress == (5.0, 10.0, "updates")
    assert heard.started_at == 2.0
    _, ended = read(event("end"))
    assert (heard.ended, ended.ended) == (False, True)
    assert (heard.phase, ended.phase) == ("train", "end")


def test_long_line_is_shortened() -> None:
    batch, _ = read(b"x" * 100_000)
    assert batch.malformed[0][1] == "x" * KEPT_CHARACTERS


def test_blank_lines_are_nothing() -> None:
    batch, _ = read(b"", GOOD, b"  ", b"")
    assert len(batch.events) == 1
    assert not batch.malformed
