"""Reading all-reduce events from profiler traces, for both backends and their notations."""

from typing import Any

import pytest
from torch import nn

from trainer.common.witness import all_reduce_sizes, gradient_bytes, is_sampled


def annotated(backend: str, elements: int, kind: str = "float", category: str = "user_annotation") -> dict[str, Any]:
    arguments = {"Input Dims": [[elements]], "Input type": [kind]}
    return {"name": f"{backend}:all_reduce", "cat": category, "args": arguments}


def test_annotations_give_bytes() -> None:
    events = [annotated("gloo", 10), {"name": "gloo:broadcast"}, annotated("gloo", 3, "double"), {"name": "other"}]
    assert all_reduce_sizes(events, "gloo") == [40, 24]


def test_other_backend_sees_nothing() -> None:
    assert all_reduce_sizes([annotated("gloo", 10)], "nccl") == []


def test_gpu_copy_counts_once() -> None:
    events = [annotated("nccl", 10), annotated("nccl", 10, category="gpu_user_annotation")]
    assert all_reduce_sizes(events, "nccl") == [40]


def test_nccl_records_without_shapes() -> None:
    shapeless = {"name": "nccl:all_reduce", "cat": "user_annotation", "args": {}}
    recorded = {
        "name": "record_param_comms",
        "cat": "cpu_op",
        "args": {"Collective name": "allreduce", "In msg nelems": 5, "dtype": "BFloat16"},
    }
    broadcast = {"name": "record_param_comms", "args": {"Collective name": "broadcast", "In msg nelems": 5}}
    assert all_reduce_sizes([shapeless, recorded, broadcast], "nccl") == [10]


def test_scalar_tensor_has_one_element() -> None:
    event = {
        "name": "gloo:all_reduce",
        "cat": "user_annotation",
        "args": {"Input Dims": [[], []], "Input type": ["long int", ""]},
    }
    assert all_reduce_sizes([event], "gloo") == [8]


def test_unknown_type_refused() -> None:
    with pytest.raises(ValueError, match="'complex' in a profiler trace is unknown"):
        all_reduce_sizes([annotated("gloo", 1, "complex")], "gloo")


def test_frozen_parameters_have_no_gradient() -> None:
    model = nn.Linear(3, 2)
    assert gradient_bytes(model) == 4 * 8
    model.bias.requires_grad_(False)
    assert gradient_bytes(model) == 4 * 6


def test_sampled_windows_by_rule() -> None:
    assert [step for step in range(12) if is_sampled(step, 4)] == [0, 1, 2, 4, 8]
    assert [step for step in range(3) if is_sampled(step, 1)] == [0, 1, 2]
