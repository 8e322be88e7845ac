"""BF16 is used if the processor supports it: by its instructions, or measured if they are not listed."""

from pathlib import Path

import pytest
import torch

from trainer.common import bf16
from trainer.common.bf16 import bf16_is_faster, computes_bf16
from trainer.common.machine import bf16_instructions

X86 = "fpu sse4_2 avx2 fma avx512f avx512dq avx512bw avx512vl avx512_vnni"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"processor\t: 0\nflags\t\t: {X86}\nbugs\t\t: x\n", False),  # BF16 is emulated there
        (f"flags\t\t: {X86} avx512_bf16\n", True),
        (f"flags\t\t: {X86} amx_tile amx_bf16 amx_int8\n", True),
        ("flags\t\t: fpu sse2\n", False),
        ("Features\t: fp asimd crc32\n", False),
        ("Features\t: fp asimd i8mm bf16\n", True),
        ("vendor_id : another\n", None),
        ("", None),
    ],
)
def test_instructions_decide(tmp_path: Path, text: str, expected: bool | None) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert bf16_instructions(path) is expected


def test_unlisted_instructions_are_unknown(tmp_path: Path) -> None:
    assert bf16_instructions(tmp_path / "missing") is None


@pytest.mark.parametrize("known", [True, False, None])
@pytest.mark.parametrize("faster", [True, False])
def test_measurement_is_asked_only_where_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, known: bool | None, faster: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(bf16, "bf16_instructions", lambda: known)

    def measured() -> bool:
        asked.append(1)
        return faster

    monkeypatch.setattr(bf16, "bf16_is_faster", measured)
    assert computes_bf16(torch.device("cpu")) is (faster if known is None else known)
    assert len(asked) == (known is None)


def test_measurement_compares_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {torch.float32: 0.077, torch.bfloat16: 0.236}  # as measured on a processor that emulates
    asked: list[torch.dtype] = []

    def timed(dtype: torch.dtype) -> float:
        asked.append(dtype)
        return seconds[dtype]

    monkeypatch.setattr(bf16, "_seconds", timed)
    bf16_is_faster.cache_clear()
    assert [bf16_is_faster(), bf16_is_faster()] == [False, False]
    assert len(asked) == 2
    bf16_is_faster.cache_clear()
    seconds[torch.bfloat16] = 0.03
    assert bf16_is_faster()
    bf16_is_faster.cache_clear()


def test_measurement_really_trains() -> None:
    bf16_is_faster.cache_clear()
    assert bf16_is_faster() in (True, False)
    bf16_is_faster.cache_clear()
