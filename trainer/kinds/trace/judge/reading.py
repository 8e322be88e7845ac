"""Reading what traced ranks wrote: bounded, types checked, and never an exception for what a file holds."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from trainer.kinds.trace.judge.records import (
    KINDS,
    DigestRecord,
    DrawnRecord,
    Part,
    RankRecord,
    SiteRecord,
    TotalsRecord,
)

RANK_FILE: Final = re.compile(r"rank(0|[1-9]\d{0,5})\.trace")
RESTART: Final = re.compile(r"restart_([1-9]\d{0,3})")
MOST_LINE: Final = 8 << 20
MOST_FILE: Final = 80 << 20
"""Bytes of one rank's records; the probe stops at 64 MiB."""
MOST_BYTES: Final = 1 << 29
"""Bytes of all records that are read."""
MOST_RANKS: Final = 4096
MOST_RECORDS: Final = 400_000
"""Of one rank; beyond these the file is read no further."""
MOST_DEVICE_LINE: Final = 1 << 16

Ids = NDArray[np.int64]
Kept = TypeVar("Kept", bound=Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A digest record without its values, which are many and rarely needed: the same fingerprint, the same values."""

    what: str
    owner: int | None
    """Number of the optimizer for gradients, else of the model."""
    step: int
    last: bool
    tensors: int
    fingerprint: bytes
    begin: int
    """Byte of its line in the file."""
    size: int


@dataclass(slots=True, eq=False)
class RankTrace:
    """Everything one rank wrote."""

    rank: int
    path: Path
    about: RankRecord | None = None
    records: dict[type[Part], list[Part]] = field(default_factory=dict)
    digests: list[Digest] = field(default_factory=list)
    malformed: int = 0
    """Lines that are not valid records."""
    torn: bool = False
    """The file ends in the middle of a line."""
    unread: int = 0
    """Bytes that were not read: over a limit."""
    device: str = ""
    host: str = ""
    node: str = ""
    """As a scheduler calls the host; else the host."""

    def all(self, kind: type[Kept]) -> list[Kept]:
        """Return the records of a kind in the order they were written."""
        return [item for item in self.records.get(kind, []) if isinstance(item, kind)]

    @property
    def sites(self) -> dict[int, SiteRecord]:
        """Lines of the user's source by number."""
        return {item.site: item for item in self.all(SiteRecord)}

    @property
    def totals(self) -> TotalsRecord | None:
        """The newest counts."""
        found = self.all(TotalsRecord)
        return found[-1] if found else None

    @property
    def ended(self) -> bool:
        """Whether the rank wrote its last words."""
        totals = self.totals
        return totals is not None and totals.last

    def values(self, digest: Digest) -> dict[str, str]:
        """Read the values of a digest again, empty where the file has changed."""
        line = _slice(self.path, digest.begin, digest.size) or b""
        try:
            return DigestRecord.model_validate_json(line).values
        except ValueError:
            return {}

    def ids(self, drawn: DrawnRecord) -> Ids | None:
        """Return the indices of a finished pass, None where they were not kept or are not all there."""
        if drawn.place is None or drawn.odd or drawn.kept != drawn.count or drawn.place % 8:
            return None
        data = _slice(self.path.with_suffix(".ids"), drawn.place, 8 * drawn.kept)
        return None if data is None or len(data) != 8 * drawn.kept else np.frombuffer(data, dtype=np.int64)


def _slice(path: Path, begin: int, size: int) -> bytes | None:
    if size > MOST_FILE or begin > MOST_FILE:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as handle:
            handle.seek(begin)
            return handle.read(size)
    except OSError:
        return None
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Trace:
    """All ranks of one start of the script."""

    ranks: list[RankTrace]
    """In order of rank."""
    restart: int = 0
    """0: the first start."""
    earlier: int = 0
    """Starts before this one, which are not judged."""
    strangers: int = 0
    """Files that say they belong to another rank than their name, or to none."""

    @property
    def world_size(self) -> int:
        """How many ranks there are, by the words of the lowest one; 0 when none spoke."""
        about = self.ranks[0].about if self.ranks else None
        return about.world_size if about else 0

    @property
    def missing(self) -> list[int]:
        """Ranks that left no records, at most a hundred of them."""
        there = {item.rank for item in self.ranks}
        missing = (rank for rank in range(self.world_size) if rank not in there)
        return [rank for rank, _ in zip(missing, range(100), strict=False)]

    @property
    def whole(self) -> bool:
        """Whether every rank is there."""
        return len(self.ranks) == self.world_size > 0

    @property
    def first(self) -> RankTrace | None:
        """The lowest rank."""
        return self.ranks[0] if self.ranks else None


def read(folder: Path) -> Trace:
    """Read the newest start of the script that left records below `folder`; an unreadable folder has none."""
    starts = [(0, folder), *sorted(_restarts(folder))]
    spoken = [(number, found) for number, path in starts if (found := _start(path)).ranks or found.strangers]
    if not spoken:
        return Trace([])
    restart, newest = spoken[-1]
    newest.restart, newest.earlier = restart, len(spoken) - 1
    return newest


def _restarts(folder: Path) -> Iterator[tuple[int, Path]]:
    for entry in _listed(folder):
        match = RESTART.fullmatch(entry.name)
        if match and entry.is_dir(follow_symlinks=False):
            yield int(match[1]), Path(entry.path)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _start(folder: Path) -> Trace:
    found = Trace([])
    left = MOST_BYTES
    names = [(int(match[1]), entry) for entry in _listed(folder) if (match := RANK_FILE.fullmatch(entry.name))]
    for rank, entry in sorted(names, key=lambda item: item[0])[:MOST_RANKS]:
        trace = _rank(Path(entry.path), rank, min(left, MOST_FILE))
        if trace is None or trace.about is None or trace.about.rank != rank or rank >= trace.about.world_size:
            found.strangers += 1
            continue
        left -= min(left, trace.path.stat().st_size)
        start = _start_event(trace.path.with_suffix(".jsonl"))
        trace.device, trace.host = start.get("device", ""), start.get("host", "")
        trace.node = start.get("node", "") or trace.host
        if found.ranks and trace.about.world_size != found.world_size:
            found.strangers += 1  # of another start
            continue
        found.ranks.append(trace)
    return found


def _rank(path: Path, rank: int, most: int) -> RankTrace | None:
    data = _slice(path, 0, most)
    if data is None:
        return None
    trace = RankTrace(rank, path)
    trace.unread = max(0, path.stat().st_size - len(data))
    begin = 0
    for number in range(MOST_RECORDS + 1):
        end = data.find(b"\n", begin)
        if end < 0 or number == MOST_RECORDS:
            break
        line = data[begin:end]
        if line.strip():
            _take(trace, line, begin)
        begin = end + 1
    trace.torn = begin < len(data) and data.find(b"\n", begin) < 0 and not trace.unread
    trace.unread += 0 if trace.torn else len(data) - begin
    return trace


def _take(trace: RankTrace, line: bytes, begin: int) -> None:
    try:
        document = json.loads(line) if len(line) <= MOST_LINE else None
        kind = document.get("record") if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(kind, str):
            trace.malformed += 1
            return
        model = KINDS.get(kind)
        if model is None:
            return
        record = model.model_validate_json(line)
    except (ValidationError, ValueError, RecursionError):
        trace.malformed += 1
        return
    if isinstance(record, RankRecord):
        trace.about = trace.about or record
    elif isinstance(record, TotalsRecord):
        trace.records[TotalsRecord] = [record]
    elif isinstance(record, DigestRecord):
        trace.digests.append(_digest(record, begin, len(line)))
    else:
        trace.records.setdefault(model, []).append(record)


def _digest(record: DigestRecord, begin: int, size: int) -> Digest:
    owner = record.optimizer if record.what == "gradients" else record.model
    return Digest(
        what=record.what,
        owner=owner,
        step=record.step,
        last=record.last,
        tensors=len(record.values),
        fingerprint=hashlib.sha256(json.dumps(record.values, sort_keys=True).encode(errors="replace")).digest(),
        begin=begin,
        size=size,
    )


def _start_event(events: Path) -> dict[str, str]:
    """Return the texts of a rank's start event, empty when there is none."""
    data = _slice(events, 0, MOST_DEVICE_LINE) or b""
    try:
        document = json.loads(data.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {name: value[:256] for name, value in document.items() if isinstance(value, str)}
