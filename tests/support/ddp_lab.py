"""Experiments that need real ranks: run once by torchrun as a stage (`run`, `run_variants`), judged by the tests.

Every rank writes its observations to `work/lab-rank<r>.json`; gradients of the planted variants go to
`work/<variant>/`.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.common.context import StageContext
from trainer.common.distributed import Group, process_group
from trainer.common.rank_devices import describe
from trainer.common.sync_counter import SyncCounter, SyncWindow
from trainer.common.window import RULES, Counts, accumulate
from trainer.contract.files import make_folder, write_json_atomically
from trainer.contract.paths import RunPaths
from trainer.kinds.token_parity.distributed import WindowAudit
from trainer.kinds.token_parity.handover import Handover, write_document
from trainer.kinds.token_parity.params import Variant
from trainer.kinds.token_parity.signed import signed_gradients
from trainer.tokens.plan import data_lock

# Tokens of fixture M: x[rank][micro-batch]; the gradient of a token is its x.
TOKENS = (((2,) * 5, (7,), (2,) * 3), ((-2,) * 2, (3,) * 8, (9,)))
EXTRA_RULES: dict[str, Callable[[Tensor, Counts], Tensor]] = {
    "micro_means_undivided": lambda total, counts: total / counts.cell,
    "micro_means_undivided_times_world_size": lambda total, counts: counts.world_size * total / counts.cell,
    "micro_means_times_world_size": lambda total, counts: counts.world_size * total / counts.cell / counts.accumulation,
    "missing_world_size_and_extra_division": lambda total, counts: total / counts.window / counts.accumulation,
    "rank_zero_count_everywhere": lambda total, _: total / 9,
    "weighted_means": lambda total, counts: total / counts.cell * (counts.cell * counts.world_size / counts.window),
}


class Dot(nn.Module):
    """One weight; the loss of a token x is weight * x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the losses of `tokens` [N]."""
        return self.weight * tokens


class Branches(nn.Module):
    """Two layers, of which a micro-batch uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 1, dtype=torch.float64)
        self.second = nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, inputs: tuple[Tensor, bool]) -> Tensor:
        """Return the outputs of the chosen layer."""
        data, use_first = inputs
        output: Tensor = (self.first if use_first else self.second)(data)
        return output


class DoubleCounter(SyncCounter):
    """A broken twin: every synchronisation counts twice."""

    def record_synchronisation(self) -> None:
        """Count one too many."""
        super().record_synchronisation()
        super().record_synchronisation()


class WaitingCounter(SyncCounter):
    """Waits in the hook, as for ranks that share a GPU over gloo."""

    def attach(self, model: DistributedDataParallel) -> None:
        """Become the hook of `model`."""
        super().attach(model)
        self._waits = True


def run(context: StageContext) -> None:
    """Run every experiment and write this rank's observations."""
    with process_group(context) as group:
        found = {
            "rules": fixture_under_rules(group),
            "mistakes": fixture_mistakes(group),
            "counters": counters(group),
            "views": bucket_views(group),
            "branches": unused_branches(group),
            "crumb": [group.telemetry.crumb.collective, group.telemetry.crumb.inside],
        }
        write_json_atomically(context.paths.work / f"lab-rank{group.rank}.json", found, within=context.paths.root)
        group.barrier("end of the lab")


def run_variants(context: StageContext) -> None:
    """Write the intermediate files of an audit of every variant."""
    with process_group(context) as group:
        for variant in get_args(Variant):
            plant(context, group, variant)
        group.barrier("end of the variants")


def fixture_under_rules(group: Group) -> dict[str, float]:
    """Return this rank's gradient of fixture M under every rule."""
    return {name: _fixture(group, rule)[0] for name, rule in {**RULES, **EXTRA_RULES}.items()}


def fixture_mistakes(group: Group) -> dict[str, tuple[float, int]]:
    """Return (gradient, synchronisations) of fixture M if the loop is wrong and the rule is right."""
    return {
        "right": _fixture(group, RULES["correct"]),
        "forward_outside": _loop(group, lambda model, batch, _: model(batch), sync_forward=True),
        "every": _loop(group, lambda model, batch, _: model(batch), sync_backward=True, sync_forward=True),
        "bypassed": _loop(group, lambda model, batch, _: model.module(batch)),
        "hook_sums": _fixture(group, RULES["correct"], averaging=False),
        "value_reduced": _loop(group, _value_reduced),
    }


def counters(group: Group) -> dict[str, Any]:
    """Return the counts in three windows, with one and with many buckets, in order or not, broken or not."""
    return {
        "one": [_window(item) for item in _windows(group, SyncCounter(group.telemetry), cap=25.0)],
        "many": [_window(item) for item in _windows(group, SyncCounter(group.telemetry), cap=0.001)],
        "ordered": [_window(item) for item in _windows(group, SyncCounter(group.telemetry, ordered=True), cap=0.001)],
        "unused": [_window(item) for item in _windows(group, SyncCounter(group.telemetry), cap=0.001, unused=True)],
        "waiting": [_window(item) for item in _windows(group, WaitingCounter(group.telemetry), cap=0.001)],
        "double": [_window(item) for item in _windows(group, DoubleCounter(group.telemetry), cap=0.001)],
        "every": [_window(item) for item in _windows(group, SyncCounter(group.telemetry), cap=0.001, every=True)],
    }


def bucket_views(group: Group) -> dict[str, list[float]]:
    """Return a gradient's norm in three windows: gradients as bucket views or not, with DDP's reduction or a hook."""
    found = {}
    for name, view, counter in (
        ("copies", False, None),
        ("views", True, None),
        ("hook", False, SyncCounter(group.telemetry)),
        ("hook and views", True, SyncCounter(group.telemetry)),
        ("ordered", False, SyncCounter(group.telemetry, ordered=True)),
        ("waiting", False, WaitingCounter(group.telemetry)),
    ):
        model = _layers(group, cap=0.001, view=view)
        if counter is not None:
            counter.attach(model)
        found[name] = [_norms(group, model)[0] for _ in range(3)]
    return found


def unused_branches(group: Group) -> list[float]:
    """Return the gradient of a layer that only the first micro-batch uses, with find_unused_parameters."""
    torch.manual_seed(5)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    data = torch.full((2, 4), float(group.rank + 1), dtype=torch.float64)
    accumulate(group, model, [(data, True), (data, False)], [2, 2], lambda net, item: net(item).sum())
    gradient: Any = model.module.first.weight.grad
    return [float(value) for value in gradient.flatten()]


def plant(context: StageContext, group: Group, variant: str) -> None:
    """Write the intermediate files of an audit in which `variant` is the audited rule."""
    shape = context.params.shape
    audit = WindowAudit.of(group, shape, variant)
    gradients, empty, signed = audit.gradients(), audit.empty_window(), signed_gradients(group)
    handover = Handover(RunPaths(context.paths.work / variant))
    make_folder(handover.paths.work, within=context.paths.root)
    torch.save(gradients, handover.gradients(group.rank))
    report = {**audit.report, **describe(group), "empty_window": empty, "signed": signed}
    write_document(handover.report(group.rank), {**report, "data_lock": data_lock(shape)})


def _fixture(group: Group, rule: Callable[[Tensor, Counts], Tensor], *, averaging: bool = True) -> tuple[float, int]:
    batches = [torch.tensor(cell, dtype=torch.float64) for cell in TOKENS[group.rank]]
    model = DistributedDataParallel(Dot())
    counter = SyncCounter(group.telemetry)
    if averaging:
        counter.attach(model)
    else:
        model.register_comm_hook(None, _summing_hook)
    accumulate(group, model, batches, [len(batch) for batch in batches], _dot_sum, rule=rule)
    return _gradient(model), counter.take().count


def _loop(
    group: Group,
    forward: Callable[[DistributedDataParallel, Tensor, Group], Tensor],
    *,
    sync_forward: bool = False,
    sync_backward: bool = False,
) -> tuple[float, int]:
    model = DistributedDataParallel(Dot())
    counter = SyncCounter(group.telemetry)
    counter.attach(model)
    for place, cell in enumerate(TOKENS[group.rank]):
        batch = torch.tensor(cell, dtype=torch.float64)
        last = place == len(TOKENS[group.rank]) - 1
        with nullcontext() if last or sync_forward else model.no_sync():
            loss = forward(model, batch, group).sum() * group.world_size / 20
        with nullcontext() if last or sync_backward else model.no_sync():
            loss.backward()  # type: ignore[no-untyped-call]
    return _gradient(model), counter.take().count


def _value_reduced(model: DistributedDataParallel, batch: Tensor, group: Group) -> Tensor:
    # The loss's value becomes global, but its graph and the gradient of the parameter are local.
    losses: Tensor = model.module(batch)
    total = losses.sum()
    dist.all_reduce(total.detach())
    return total


def _summing_hook(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
    return summed


def _layers(group: Group, *, cap: float, unused: bool = False, view: bool = False) -> DistributedDataParallel:
    torch.manual_seed(3)
    layers = nn.Sequential(*(nn.Linear(16, 16, dtype=torch.float64) for _ in range(5)))
    return DistributedDataParallel(
        layers, bucket_cap_mb=cap, find_unused_parameters=unused, gradient_as_bucket_view=view
    )


def _windows(
    group: Group, counter: SyncCounter, *, cap: float, unused: bool = False, every: bool = False
) -> Sequence[SyncWindow]:
    model = _layers(group, cap=cap, unused=unused)
    counter.attach(model)
    found = []
    for _ in range(3):
        _norms(group, model, every=every)
        found.append(counter.take())
    return found


def _norms(group: Group, model: DistributedDataParallel, *, every: bool = False) -> list[float]:
    generator = torch.Generator().manual_seed(group.rank)
    data = [torch.randn(4, 16, dtype=torch.float64, generator=generator) for _ in range(3)]
    if every:
        for batch in data:
            model(batch).square().sum().backward()
    else:
        accumulate(group, model, data, [4, 4, 4], lambda net, batch: net(batch).square().sum())
    return [float(parameter.grad.norm()) for parameter in model.parameters() if parameter.grad is not None]


def _dot_sum(model: nn.Module, batch: Tensor) -> Tensor:
    losses: Tensor = model(batch)
    return losses.sum()


def _gradient(model: DistributedDataParallel) -> float:
    gradient: Any = model.module.weight.grad
    return float(gradient.item())


def _window(window: SyncWindow) -> dict[str, float]:
    return {"count": window.count, "bytes": window.size, "buckets": window.buckets, "seconds": window.seconds}
