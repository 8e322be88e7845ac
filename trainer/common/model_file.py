"""`model.pt`: weights and everything needed to classify an image, with a strict loader."""

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainer.contract.files import write_bytes_atomically
from trainer.contract.pixels import CHANNEL_DEVIATIONS, CHANNEL_MEANS, INPUT_SIZE

FORMAT: Final = "ddp-audit image classifier 1"
WRAPPERS: Final = ("module.", "_orig_mod.")
"""Prefixes added to every name by DistributedDataParallel and by torch.compile."""
MAX_MODEL_BYTES: Final = 512 * 1024 * 1024
NAMES_SHOWN: Final = 5
MAX_CHOICES: Final = 64
Architecture = bool | int | float | str


class ModelFileRefused(ValueError):
    """The file is not a usable model; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHeader:
    """What a model file says about its network, besides the weights."""

    classes: tuple[str, ...]
    input_size: int
    """Height and width in pixels."""
    architecture: Mapping[str, Architecture]
    """Choices the network was built with, such as a width, as passed to `save_model`; not checked here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageModel:
    """A classifier ready for inference: evaluation mode, FP32, on the CPU."""

    network: nn.Module
    classes: tuple[str, ...]
    seed: int | None
    input_size: int
    """Height and width in pixels."""
    channel_means: tuple[float, ...]
    channel_deviations: tuple[float, ...]
    sha256: str
    """Hex digest of the file."""


def save_model(
    path: Path,
    network: nn.Module,
    *,
    classes: Sequence[str],
    seed: int,
    architecture: Mapping[str, Architecture] | None = None,
) -> str:
    """Write weights, class names, seed, input size and normalisation atomically; return the file's SHA-256.

    `network` may still be wrapped by DDP or torch.compile; `architecture` contains what is needed to build it again.
    Raises ValueError for repeated class names and for values that are not plain, and OSError.
    """
    _refuse_classes(list(classes))
    _refuse_architecture(dict(architecture or {}))
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    document = {
        "format": FORMAT,
        "weights": weights,
        "classes": list(classes),
        "seed": seed,
        "input_size": INPUT_SIZE,
        "architecture": dict(architecture or {}),
        "channel_means": list(CHANNEL_MEANS),
        "channel_deviations": list(CHANNEL_DEVIATIONS),
    }
    buffer = io.BytesIO()
    torch.save(document, buffer)
    data = buffer.getvalue()
    write_bytes_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


def load_model(path: Path, build: Callable[[ModelHeader], nn.Module]) -> ImageModel:
    """Return the model in `path`; `build(header)` creates the network that its weights must match by name.

    Raises ModelFileRefused for any other file, and if `build` raises; FileNotFoundError, other OSErrors.
    """
    size = path.stat().st_size
    if size > MAX_MODEL_BYTES:
        raise ModelFileRefused(f"{path.name} has {size} bytes; a model file has at most {MAX_MODEL_BYTES}")
    data = path.read_bytes()
    document = _document(path.name, data)
    header = _header(document)
    network = _built(build, header)
    fit_weights(network, document["weights"])
    network.eval()
    return ImageModel(
        network=network,
        classes=header.classes,
        seed=document.get("seed"),
        input_size=header.input_size,
        channel_means=_channels(document, "channel_means", CHANNEL_MEANS),
        channel_deviations=_channels(document, "channel_deviations", CHANNEL_DEVIATIONS, positive=True),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _header(document: Mapping[str, Any]) -> ModelHeader:
    return ModelHeader(
        classes=_refuse_classes(document["classes"]),
        input_size=_input_size(document.get("input_size", INPUT_SIZE)),
        architecture=_refuse_architecture(document.get("architecture", {})),
    )


def _built(build: Callable[[ModelHeader], nn.Module], header: ModelHeader) -> nn.Module:
    try:
        return build(header)
    except Exception as error:  # whatever a kind's own code raises, the file is rejected and the child continues
        raise ModelFileRefused(f"no network can be built from its header: {error}") from error


def fit_weights(network: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load `weights` strictly, regardless of wrappers around the network when they were saved.

    Raises ModelFileRefused naming every missing, unexpected, wrongly shaped or non-finite entry (at most five of each).
    """
    expected = network.state_dict()
    found = without_wrappers(weights, expected.keys())
    problems = _name_problems(expected, found) or _value_problems(expected, found)
    if problems:
        raise ModelFileRefused(f"the weights do not fit this model: {'; '.join(problems)}")
    network.load_state_dict(found, strict=True)


def without_wrappers(weights: Mapping[str, Any], expected: Any) -> dict[str, Any]:
    """Return `weights` without the prefixes of wrappers, in any order and number.

    A prefix is removed only if every name has it and the names do not fit yet, so a network that has a submodule
    called `module` keeps it.
    """
    names = dict(weights)
    while names and set(names) != set(expected):
        prefix = next((prefix for prefix in WRAPPERS if all(name.startswith(prefix) for name in names)), None)
        if prefix is None:
            break
        names = {name.removeprefix(prefix): tensor for name, tensor in names.items()}
    return names


def _document(name: str, data: bytes) -> dict[str, Any]:
    try:
        document = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many exception types here, depending on where the bytes are invalid
        reason = re.split(r"[.\n]", str(error).strip(), maxsplit=1)[0] or type(error).__name__
        raise ModelFileRefused(f"{name} cannot be read as a weights-only PyTorch file: {reason}") from None
    if not isinstance(document, dict):
        raise ModelFileRefused(f"{name} contains a {type(document).__name__}; weights, classes and seed are needed")
    missing = [key for key in ("weights", "classes") if key not in document]
    if missing:
        raise ModelFileRefused(
            f"{name} lacks {' and '.join(missing)}; it contains {_listed(document)}. "
            "Use the model.pt of a run, which contains weights, classes and seed"
        )
    weights = document["weights"]
    if not isinstance(weights, Mapping) or not all(isinstance(key, str) for key in weights):
        raise ModelFileRefused(f"weights in {name} are not a mapping from names to tensors")
    return document


def _refuse_classes(classes: Any) -> tuple[str, ...]:
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) and name for name in classes):
        raise ModelFileRefused("classes must be a list of names")
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise ModelFileRefused(f"classes must be at least two different names, not {_listed(classes)}")
    return tuple(classes)


def _refuse_architecture(choices: Any) -> dict[str, Architecture]:
    plain = isinstance(choices, dict) and all(
        isinstance(name, str) and isinstance(value, Architecture) for name, value in choices.items()
    )
    if not plain or len(choices) > MAX_CHOICES:
        raise ModelFileRefused(f"architecture must be at most {MAX_CHOICES} names with plain values")
    return dict(choices)


def _name_problems(expected: Mapping[str, Tensor], found: Mapping[str, Any]) -> list[str]:
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    parts = (("missing", missing), ("unexpected", unexpected))
    return [f"{len(names)} {word}: {_listed(names)}" for word, names in parts if names]


def _value_problems(expected: Mapping[str, Tensor], found: Mapping[str, Any]) -> list[str]:
    wrong = [name for name, tensor in found.items() if not isinstance(tensor, Tensor)]
    if wrong:
        return [f"not tensors: {_listed(wrong)}"]
    misshapen = [
        f"{name} has shape {tuple(found[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if found[name].shape != tensor.shape
    ]
    if misshapen:
        return misshapen[:NAMES_SHOWN]
    infinite = [name for name, tensor in found.items() if not bool(torch.isfinite(tensor).all())]
    return [f"non-finite values in {_listed(infinite)}; the training diverged"] if infinite else []


def _input_size(value: Any) -> int:
    if value != INPUT_SIZE:
        raise ModelFileRefused(f"input_size is {value!r}; images are resized to {INPUT_SIZE}")
    return INPUT_SIZE


def _channels(
    document: Mapping[str, Any], key: str, default: tuple[float, ...], *, positive: bool = False
) -> tuple[float, ...]:
    values = document.get(key, default)
    if (
        not isinstance(values, list | tuple)
        or len(values) != len(default)
        or not all(isinstance(value, float) and abs(value) < 1e6 and (value > 0 or not positive) for value in values)
    ):
        raise ModelFileRefused(f"{key} must be {len(default)} numbers{' above 0' if positive else ''}, not {values!r}")
    return tuple(values)


def _listed(names: Any) -> str:
    shown = [str(name) for name in list(names)[:NAMES_SHOWN]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
