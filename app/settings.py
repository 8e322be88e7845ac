"""The only module that reads the environment: every `DDP_AUDIT_*` setting, checked once."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.places import default_data_dir
from trainer.contract.params import MAX_IMAGE_PIXELS
from trainer.contract.targets import read_specs
from trainer.contract.wording import fault

if TYPE_CHECKING:
    from sqlalchemy import URL

LOCAL: Final = "local"
SLURM: Final = "slurm"
SCRIPT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def _as_text(value: Any, info: ValidationInfo) -> Any:
    """Return a value unchanged. Raises ValueError for bytes that are not valid text; a directory may have any name."""
    if isinstance(value, str) and not str(info.field_name).endswith("_dir"):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("is not valid UTF-8") from None
    return value


class Settings(BaseSettings):
    """All settings, frozen. Unset paths follow from `data_dir`.

    Raises pydantic.ValidationError naming the setting.
    """

    model_config = SettingsConfigDict(
        env_prefix="DDP_AUDIT_",
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        hide_input_in_errors=True,  # the input of a failed check contains the tokens
    )

    data_dir: Path = Path()
    """`var` in a checkout, else the user's data directory."""
    runs_dir: Path = Path()
    """May be a shared file system; the SQLite file must not be."""
    datasets_dir: Path = Path()
    database_url: str = ""
    """Empty: SQLite in the data directory. `postgresql+psycopg://user:password@host:5432/name` for PostgreSQL."""
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Comma-separated; empty: the loopback names and `host`."""
    root_path: str = ""
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    token: SecretStr | None = None
    """Operator."""
    viewer_token: SecretStr | None = None
    """Read only."""
    public_read: bool = False
    targets: str = ""
    """`package.module:Object`, separated by commas: training code whose gradients can be audited."""
    scripts: Annotated[dict[str, tuple[str, ...]], NoDecode] = Field(default_factory=dict)
    """`name=command`, separated by semicolons or line breaks: training scripts that may be traced from the page and by
    REST. Commands run in the worker's folder, without a shell."""
    executor: str = LOCAL
    """Where attempts are started: `local` or `slurm`."""
    slurm_partition: str = ""
    """Default of `launch.partition`; empty: Slurm's own default. The same applies to the next two."""
    slurm_account: str = ""
    slurm_time_limit: str = ""
    slurm_cpus_per_rank: int = Field(1, ge=1, le=1024)
    """Default of `launch.cpus_per_rank`."""
    slurm_setup: Path | None = None
    """Shell file whose lines come first in every job: modules, environments."""
    slurm_python: Annotated[tuple[str, ...], NoDecode] = ()
    """Command that runs Python on the nodes, such as `apptainer exec image.sif python3`; empty: this interpreter."""
    slurm_arguments: Annotated[tuple[str, ...], NoDecode] = ()
    """Further arguments of every sbatch."""
    slurm_max_jobs: int = Field(64, ge=1)
    """Active runs on Slurm, per database."""
    slurm_poll_seconds: float = Field(3, ge=0.2, le=60)
    """Between two calls of squeue."""
    warm_start: bool = True
    """Keep a process with torch imported and fork the attempts from it; otherwise each attempt imports torch itself."""
    start_seconds: float = Field(120, gt=0)
    """Until a rank's first event."""
    stall_seconds: float = Field(60, gt=0)
    """Since a rank's newest event: flagged."""
    hang_seconds: float = Field(300, gt=0)
    """Since a rank's newest event: the run ends."""
    run_limit_seconds: float = Field(21_600, gt=0)
    stop_grace_seconds: float = Field(10, ge=0, le=3600)
    max_upload_bytes: int = Field(5 * 1024 * 1024, ge=1)
    max_image_pixels: int = Field(MAX_IMAGE_PIXELS, ge=1)
    """Of a picture to classify, and of a picture in a training folder."""
    max_cpu_runs: int = Field(1, ge=1)
    """Per database."""
    webhook_url: SecretStr | None = None
    """Notified of every run that ends; secret, because many receivers put their key into the address."""
    webhook_secret: SecretStr | None = None
    """Signs the messages."""
    min_free_bytes: int = Field(256 * 1024**2, ge=0)
    """`/readyz` fails below this much free disk in the data or the runs directory."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """`auto`: text on a terminal, JSON lines elsewhere."""

    _text = field_validator("*", mode="before")(_as_text)

    @field_validator("allowed_hosts", "trusted_proxies", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("scripts", mode="before")
    @classmethod
    def _read_scripts(cls, value: Any) -> Any:
        return dict(map(_script, filter(str.strip, re.split(r"[;\n]", value)))) if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def _usable_address(cls, value: str) -> str:
        if value:
            from app.database.address import read_address

            read_address(value)
        return value

    @field_validator("executor")
    @classmethod
    def _known_executor(cls, value: str) -> str:
        if value not in {LOCAL, SLURM}:
            raise ValueError(
                f"must be {LOCAL} (attempts are started on the worker's own machine) or {SLURM} (as jobs of a cluster)"
            )
        return value

    @field_validator("slurm_python", "slurm_arguments", mode="before")
    @classmethod
    def _split_words(cls, value: Any) -> Any:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("slurm_time_limit")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        from trainer.contract.timelimit import seconds_of

        if value and seconds_of(value) is None:
            raise ValueError("must be a time as in sbatch --time, such as 90 (minutes), 1:30:00 or 2-00:00:00")
        return value

    @field_validator("targets")
    @classmethod
    def _read_targets(cls, value: str) -> str:
        return ",".join(read_specs(value))

    @model_validator(mode="before")
    @classmethod
    def _derive_paths(cls, values: dict[str, Any]) -> dict[str, Any]:
        data_dir = Path(values.get("data_dir") or default_data_dir()).expanduser().absolute()
        values["data_dir"] = data_dir
        values["runs_dir"] = Path(values.get("runs_dir") or data_dir / "runs").expanduser().absolute()
        values["datasets_dir"] = Path(values.get("datasets_dir") or data_dir / "datasets").expanduser().absolute()
        return values

    @model_validator(mode="after")
    def _open_hosts_need_a_token(self) -> Self:
        if self.host not in LOOPBACK_NAMES and self.token is None:
            raise ValueError(
                f"DDP_AUDIT_HOST is {self.host!r}, which others can reach: set DDP_AUDIT_TOKEN, or use 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _webhook_is_signed(self) -> Self:
        if self.webhook_url is None:
            return self
        if not self.webhook_url.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("DDP_AUDIT_WEBHOOK_URL must begin with https:// or http://")
        if self.webhook_secret is None:
            raise ValueError(
                "DDP_AUDIT_WEBHOOK_URL is set: set DDP_AUDIT_WEBHOOK_SECRET too, because every message is signed"
            )
        return self

    @property
    def database(self) -> "URL":
        """Address of the database; built from parts, since a path may contain characters that are special in URLs."""
        from sqlalchemy import URL

        if self.database_url:
            from app.database.address import read_address

            return read_address(self.database_url)
        return URL.create("sqlite", database=str(self.data_dir / "ddp-audit.db"))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names this service answers to."""
        return self.allowed_hosts or (*LOOPBACK_NAMES, self.host)


def _script(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, command = text.partition("=")
    name = name.strip()
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ValueError(f"script {name}: {error}") from None
    if not SCRIPT_NAME.fullmatch(name) or not equals or not words:
        raise ValueError(
            f"{text.strip()[:80]!r} is not name=command, such as nightly=torchrun --nproc-per-node 2 train.py; "
            f"a name matches {SCRIPT_NAME.pattern}"
        )
    return name, words


def load_settings(**overrides: Any) -> Settings:
    """Return the settings: environment, then `overrides` that are not None."""
    return Settings(**{name: value for name, value in overrides.items() if value is not None})


def refusals(error: ValidationError) -> str:
    """Return which settings are wrong and why, without their values."""
    parts = []
    for item in error.errors(include_url=False):
        name = "_".join(str(part) for part in item["loc"]).upper()
        text = fault(item, tell_value=False)
        parts.append(f"DDP_AUDIT_{name}: {text}" if name else text)
    return "; ".join(parts)


class ClientSettings(BaseSettings):
    """Settings of a client command: which service it talks to, and with which token."""

    model_config = SettingsConfigDict(env_prefix="DDP_AUDIT_", frozen=True, extra="ignore", env_ignore_empty=True)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    token: SecretStr | None = None
    viewer_token: SecretStr | None = None

    _text = field_validator("*", mode="before")(_as_text)

    @property
    def remote(self) -> bool:
        """Whether a service was named; otherwise commands work on the data directory."""
        return bool({"host", "port"} & self.model_fields_set)

    @property
    def base_url(self) -> str:
        """Address of the service; a wildcard address is reached by loopback."""
        name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{name}]:{self.port}" if ":" in name else f"http://{name}:{self.port}"

    @property
    def bearer(self) -> str | None:
        """The token to send: the operator's, else the viewer's."""
        token = self.token or self.viewer_token
        return None if token is None else token.get_secret_value()
