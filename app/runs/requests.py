"""Requests to record a run, and the checks that need no database."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.runs.cluster import check_options
from app.runs.errors import FieldError, Refused, refusal_of, refused
from app.runs.tags import Tags
from app.runs.targets import catalogue
from app.runs.texts import plain_text
from app.settings import SLURM, Settings
from trainer.contract.kinds import KindSpec, Program, kinds, program_of, resolve_params
from trainer.contract.params import CommonParams, ParamsRefused, PreflightContext

KEY_LENGTH: Final = 255
LAUNCH_FIELDS: Final = ("nodes", "ranks_per_node", "endpoint")
"""Launch options that the local executor supports."""
ON_A_CLUSTER: Final = "use `ddp-audit trace --prepare DIR` in your own batch script, then `--import DIR`"
MAX_PORT: Final = 65_535
MAX_HOST_LENGTH: Final = 253


Word = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(plain_text)]
Name = Annotated[str, Field(max_length=200), AfterValidator(plain_text)]


class RunRequest(BaseModel):
    """Body of `POST /runs`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Word = Field(description="One of `GET /kinds`.")
    preset: Word | None = Field(None, description="Default: `quick`.")
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters that differ from the preset.")
    launch: dict[str, Any] = Field(default_factory=dict, description="For the executor, never for the kind.")
    name: Name = ""
    tags: Tags = Field(default_factory=list)

    def digest(self) -> str:
        """Return the SHA-256 of the content, independent of the order and spacing of the JSON."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


def read_request(values: Mapping[str, Any]) -> RunRequest:
    """Return a validated request. Raises Refused naming every invalid field."""
    try:
        return RunRequest.model_validate(dict(values))
    except ValidationError as error:
        raise refusal_of(error, "invalid") from None


def find_kind(name: str) -> KindSpec:
    """Return a kind by its name. Raises Refused naming the existing kinds."""
    spec = kinds().get(name)
    if spec is None:
        raise refused("kind", f"{name!r} is unknown; kinds are {', '.join(kinds())}", "unknown_kind")
    return spec


def complete_params(request: RunRequest, settings: Settings) -> CommonParams:
    """Return the complete parameters of a request. Raises Refused naming every invalid field."""
    _check_text("params", request.params)
    spec = find_kind(request.kind)
    try:
        params = resolve_params(spec, request.preset, request.params)
    except ParamsRefused as error:
        raise _refusal(error) from None
    context = PreflightContext(
        datasets_dir=settings.datasets_dir,
        targets=catalogue(settings).entries,
        max_image_pixels=settings.max_image_pixels,
    )
    problems = spec.preflight(params, context)
    if problems:
        raise _refusal(ParamsRefused(problems))
    return params


def _refusal(error: ParamsRefused) -> Refused:
    errors = [FieldError(field=problem.field, message=problem.message) for problem in error.problems]
    return Refused("invalid_params", str(error), errors)


def _check_text(field: str, value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise refused(field, "contains a lone surrogate, which is not valid text") from None


def may_start(program: Program, settings: Settings) -> bool:
    """Whether workers may start the program: only a script that the operator registered."""
    return program.script in settings.scripts and not program.imported


def check_program(request: RunRequest, params: CommonParams, settings: Settings) -> None:
    """Refuse to record a program of the user's that nobody here may start. Raises Refused."""
    program = program_of(find_kind(request.kind), params)
    if program is None or (may_start(program, settings) and settings.executor != SLURM):
        return
    if may_start(program, settings):
        raise refused("script", f"is not started on a cluster: {ON_A_CLUSTER}", "invalid_params")
    known = ", ".join(settings.scripts) or "none is (DDP_AUDIT_SCRIPTS names them)"
    if program.script:
        raise refused("script", f"{program.script!r} is not registered; registered: {known}", "invalid_params")
    how = "a command runs in a terminal, by `ddp-audit trace -- COMMAND`"
    raise refused("script", f"name a registered script ({known}); {how}", "invalid_params")


def check_launch(launch: dict[str, Any], params: CommonParams, settings: Settings) -> None:
    """Refuse launch options that the executor does not support. Raises Refused."""
    _check_text("launch", launch)
    if settings.executor == SLURM:
        check_options(launch, params)
        return
    for name, value in launch.items():
        if name not in LAUNCH_FIELDS:
            known = ", ".join(LAUNCH_FIELDS)
            raise refused(f"launch.{name}", f"unknown to the local executor, which supports {known}", "invalid_launch")
        if name == "endpoint":
            _check_endpoint(value)
            continue
        wanted = 1 if name == "nodes" else params.world_size
        if type(value) is not int or value != wanted:
            why = "the local executor has one node" if name == "nodes" else "world_size ranks run on the one node"
            raise refused(f"launch.{name}", f"must be {wanted} ({why}), given {value!r}", "invalid_launch")


def _check_endpoint(value: Any) -> None:
    # Whether the address works is known only when the ranks start; then a failure is a launch error that says why.
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not host or not port.isascii() or not port.isdigit() or int(port) > MAX_PORT or len(host) > MAX_HOST_LENGTH:
        why = f"must be host:port with a port of 0 (a free one) to {MAX_PORT}, such as 127.0.0.1:0; given {value!r}"
        raise refused("launch.endpoint", why, "invalid_launch")


def check_key(key: str | None) -> str | None:
    """Return a validated idempotency key. Raises Refused if it is empty or too long."""
    if key is None:
        return None
    if not 0 < len(key.strip()) <= KEY_LENGTH or not key.isprintable():
        raise refused("Idempotency-Key", f"needs 1 to {KEY_LENGTH} printable characters, given {len(key)}")
    return key.strip()
