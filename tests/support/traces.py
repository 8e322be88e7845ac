"""Folders as traced ranks write them, built from a description of the script: correct by default."""

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer.contract.events import encodable
from trainer.contract.result import Check, Result
from trainer.kinds.trace.judge.judging import judge
from trainer.kinds.trace.params import TraceParams

SCRIPT = "/somewhere/train.py"
LOSS, BACKWARD, MODEL, OPTIMIZER, LOADER, CLIP, SAVE, EVALUATION = range(8)
LINES = {LOSS: 30, BACKWARD: 31, MODEL: 10, OPTIMIZER: 11, LOADER: 20, CLIP: 33, SAVE: 40, EVALUATION: 50}
Units = Sequence[Sequence[float]]
UNITS: Units = ((3, 5, 4), (7, 2, 6), (1, 4, 2), (5, 5, 3))
Rule = Callable[[int, int], float]
"""(rank, micro-batch) -> factor that arrives at the loss."""


def weights(units: Units) -> float:
    """Return the units of all ranks and micro-batches."""
    return float(sum(map(sum, units)))


class Script:
    """A script on `world` ranks, step by step."""

    def __init__(
        self, folder: Path, *, world: int = 2, engine: str = "ddp", optimizer: str = "SGD", **model: Any
    ) -> None:
        self.folder, self.world, self.engine = folder, world, engine
        self.records: list[list[dict[str, Any]]] = [[] for _ in range(world)]
        self.ids = [array("q") for _ in range(world)]
        self.t = 1000.0
        self.steps = 0
        self.patterns: dict[tuple[int, int, int, int], list[int]] = {}
        self.counts = {"backwards": 0, "forwards of model 0": 0, "all_reduce": 0}
        self.last = True
        self.totals: list[dict[str, Any]] = [{} for _ in range(world)]
        """What is different in the totals of a rank."""
        self.step_gap: list[int] = [0] * world
        """Steps that a rank makes fewer."""
        self._begin(optimizer, model)

    def _begin(self, optimizer: str, model: dict[str, Any]) -> None:
        for rank in range(self.world):
            self.add(
                rank, "rank", version=1, rank=rank, world_size=self.world, backend="gloo", pid=100 + rank, seed=rank
            )
            for site, line in LINES.items():
                self.add(rank, "site", site=site, function=f"f{site}", place=[SCRIPT, line], outline=[[SCRIPT, line]])
        if self.engine == "ddp":
            digests = {"w": "float32[2]:01", "b": "float32[1]:02"}
            usual = {"parameters": ["w", "b"], "initial": digests, "wrapped": digests, "batch_norms": []}
            self.all(
                "model", model=0, engine="ddp", name="Net", site=MODEL, world_size=self.world, **{**usual, **model}
            )
            self.all("hook", model=0, hook="ours")
        sharded = self.engine == "fsdp2"
        adaptive = "Adam" in optimizer
        self.all(
            "optimizer", optimizer=0, name=optimizer, adaptive=adaptive, site=OPTIMIZER, elements=3, sharded=sharded
        )

    def add(self, who: int, kind: str, /, **fields: Any) -> None:
        """Append a record to one rank."""
        self.records[who].append({"record": kind, **fields})

    def all(self, kind: str, /, **fields: Any) -> None:
        """Append the same record to every rank."""
        for rank in range(self.world):
            self.add(rank, kind, **fields)

    def tick(self, seconds: float = 0.01) -> float:
        """Let time pass."""
        self.t += seconds
        return self.t

    def window(
        self,
        units: Units | None = None,
        factor: Rule | None = None,
        *,
        reduction: str = "sum",
        synced: Sequence[int] | None = None,
        cleared: Sequence[tuple[int, int]] = (),
        outside: int = 0,
        why: str = "first",
        begin_epoch_at: int | None = None,
        equal: bool = True,
        **more: Any,
    ) -> None:
        """Append one window of every rank; without `factor` the right one, with the sum of the losses."""
        units = UNITS[: self.world] if units is None else units
        whole, count = weights(units), max(map(len, units))
        right: Rule = lambda _r, _m: self.world / whole  # noqa: E731
        rule = factor or right
        places = [count - 1] if synced is None else list(synced)
        begin = self.t
        cells: list[list[dict[str, Any]]] = [[] for _ in range(self.world)]
        for place in range(count):
            if begin_epoch_at == place:
                self.begin_pass(0, sum(item["record"] == "pass" for item in self.records[0]))
            for rank in range(self.world):
                if place < len(units[rank]):
                    loss = {"site": LOSS, "reduction": reduction, "units": units[rank][place], "weighted": False}
                    loss |= {"factor": rule(rank, place), "value": 1.0 + rank + place / 10, **more.get("loss", {})}
                    cells[rank].append(
                        {
                            "model": 0 if self.engine == "ddp" else -1,
                            "forward": [self.t, self.t + 0.001],
                            "backward": [self.t + 0.002, self.t + 0.004],
                            "forward_sync": place in places or place < outside,
                            "backward_sync": place in places,
                            "syncs": int(place in places) if self.engine != "none" else 0,
                            "sync_spans": [[self.t + 0.003, self.t + 0.0035]] if place in places else [],
                            "cleared": (rank, place) in cleared,
                            "rows": more.get("rows", 4),
                            "place": BACKWARD,
                            "losses": [] if more.get("unseen") else [loss, *more.get("also", [])],
                        }
                    )
            self.tick()
        self.steps += 1
        at = [self.t, self.tick(0.001)]
        for rank in range(self.world):
            window = {"optimizer": 0, "step": self.steps, "why": why, "t": [begin, at[1]], "step_at": at}
            scales = [more.get("scale")] * len(cells[rank])
            window |= {
                "micro_batches": len(cells[rank]),
                "clip": more.get("clip"),
                "cells": cells[rank],
                "scales": scales,
            }
            self.add(rank, "window", **window)
        if equal:
            self.digests("gradients", {"w": f"g{self.steps}"}, optimizer=0, step=self.steps)
        self._count(count, len(places), outside, len(cleared))

    def _count(self, count: int, syncs: int, outside: int, cleared: int) -> None:
        key = (count, syncs if self.engine == "ddp" else 0, outside, cleared)
        pattern = self.patterns.setdefault(key, [0, self.steps, self.steps])
        pattern[0] += 1
        pattern[2] = self.steps
        self.counts["backwards"] += count
        self.counts["forwards of model 0"] += count
        self.counts["all_reduce"] += syncs

    def digests(self, what: str, values: dict[str, str], odd: dict[str, str] | None = None, **where: Any) -> None:
        """Append digests, on the last rank with what is odd there."""
        for rank in range(self.world):
            mine = values if rank < self.world - 1 else {**values, **(odd or {})}
            self.add(rank, "digest", what=what, last=False, values=mine, **where)

    def loader(self, number: int = 0, **fields: Any) -> None:
        """Append a data loader with a distributed sampler."""
        usual: dict[str, Any] = {
            "site": LOADER,
            "dataset": "Pictures",
            "iterable": False,
            "length": 12,
            "batch_size": 2,
        }
        usual |= {"workers": 0, "sampler": "DistributedSampler", "batch_sampler": "BatchSampler", "shuffle": True}
        usual |= {"replicas": self.world, "sampler_drop_last": False, "drop_last": False}
        for rank in range(self.world):
            self.add(rank, "loader", loader=number, **{**usual, "sampler_rank": rank, **fields})

    def begin_pass(self, loader: int, number: int, seed: Callable[[int], int] = lambda rank: 50 + rank) -> None:
        """Append the beginning of a pass; by default every rank has another random stream."""
        for rank in range(self.world):
            self.add(rank, "pass", loader=loader, number=number, epoch=number, base_seed=seed(rank), t=self.t)
        self.tick()

    def end_pass(self, loader: int, number: int, ids: Sequence[Sequence[int]], **fields: Any) -> None:
        """Append the end of a pass with the indices that every rank drew."""
        for rank, mine in enumerate(ids):
            place = 8 * len(self.ids[rank])
            self.ids[rank].extend(mine)
            usual = {"complete": True, "count": len(mine), "batches": len(mine), "odd": False, "t": self.t}
            self.add(
                rank, "drawn", loader=loader, number=number, **{**usual, "place": place, "kept": len(mine), **fields}
            )
        self.tick()

    def epoch(self, number: int, ids: Sequence[Sequence[int]] | None = None, windows: int = 2, **more: Any) -> None:
        """Append one pass of the loader 0 with right windows in it."""
        order = [(7 * place + 5 * number) % 12 for place in range(12)]
        self.begin_pass(0, number)
        for _ in range(windows):
            self.window(**more)
        self.end_pass(0, number, ids or [order[rank :: self.world] for rank in range(self.world)])

    def save(self) -> Path:
        """Write the folder and return it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.world):
            optimizer = {"steps": self.steps - self.step_gap[rank], "skipped": 0, "open_cells": 0}
            optimizer["patterns"] = [[*key, *value] for key, value in self.patterns.items()]  # type: ignore[assignment]
            optimizer |= self.totals[rank].get("optimizer", {})
            usual: dict[str, Any] = {"last": self.last, "t": self.t, "counts": self.counts, "unseen": {}, "off": {}}
            usual |= {"probe_seconds": 0.01, "dropped": 0, "optimizers": {"0": optimizer}}
            own = {key: value for key, value in self.totals[rank].items() if key != "optimizer"}
            totals = {"record": "totals", **usual, **own}
            lines = [json.dumps(encodable(item)) for item in [*self.records[rank], totals]]
            (self.folder / f"rank{rank}.trace").write_text("".join(f"{line}\n" for line in lines))
            (self.folder / f"rank{rank}.ids").write_bytes(self.ids[rank].tobytes())
            start = {"seq": 0, "t": 1.0, "type": "start", "host": "here", "device": "cpu"}
            (self.folder / f"rank{rank}.jsonl").write_text(f"{json.dumps(start)}\n")
        return self.folder


def right(folder: Path, **options: Any) -> Script:
    """Return a right script of two epochs, to be broken before it is saved."""
    script = Script(folder, **options)
    script.loader()
    script.epoch(0)
    script.epoch(1)
    if script.engine == "ddp":
        script.digests("parameters", {"w": "p4", "b": "p5"}, model=0, step=4)
        script.digests("buffers", {}, model=0, step=4)
    return script


def judged(script: Script, exit_code: int | None = 0, **params: Any) -> Result:
    """Save a script and judge what it wrote."""
    return judge(script.save(), TraceParams(**params), exit_code)


def names(result: Result) -> dict[str, str]:
    """Return name -> severity of the findings."""
    return {item["name"]: item["severity"] for item in result.summary["findings"]}


def check(result: Result, name: str) -> Check:
    """Return a check by name."""
    return next(item for item in result.checks if item.name == name)
