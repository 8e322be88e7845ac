"""The one place that reads the environment: every `DDP_AUDIT_*` setting, checked once."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

CHECKOUT = Path(__file__).resolve().parent.parent
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


class Settings(BaseSettings):
    """All settings, frozen. Unset paths follow from `data_dir`.

    Raises pydantic.ValidationError naming the setting.
    """

    model_config = SettingsConfigDict(env_prefix="DDP_AUDIT_", frozen=True, extra="ignore", env_ignore_empty=True)

    data_dir: Path = CHECKOUT / "var"
    runs_dir: Path = Path()
    """May be a shared file system; the SQLite file must not be."""
    datasets_dir: Path = Path()
    database_url: str = ""
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
    executor: Literal["local"] = "local"
    start_seconds: float = Field(120, gt=0)
    """Until a rank's first event."""
    stall_seconds: float = Field(60, gt=0)
    """Since a rank's newest event: flagged."""
    hang_seconds: float = Field(300, gt=0)
    """Since a rank's newest event: the run ends."""
    run_limit_seconds: float = Field(21_600, gt=0)
    stop_grace_seconds: float = Field(10, ge=0, le=3600)
    max_upload_bytes: int = Field(5 * 1024 * 1024, ge=1)
    max_image_pixels: int = Field(20_000_000, ge=1)
    max_cpu_runs: int = Field(1, ge=1)
    """Per database."""

    @field_validator("allowed_hosts", "trusted_proxies", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @model_validator(mode="before")
    @classmethod
    def _derive_paths(cls, values: dict[str, Any]) -> dict[str, Any]:
        data_dir = Path(values.get("data_dir") or CHECKOUT / "var").expanduser().absolute()
        values["data_dir"] = data_dir
        values["runs_dir"] = Path(values.get("runs_dir") or data_dir / "runs").expanduser().absolute()
        values["datasets_dir"] = Path(values.get("datasets_dir") or data_dir / "datasets").expanduser().absolute()
        values["database_url"] = values.get("database_url") or f"sqlite:///{data_dir / 'ddp-audit.db'}"
        return values

    @model_validator(mode="after")
    def _open_hosts_need_a_token(self) -> Self:
        if self.host not in LOOPBACK_NAMES and self.token is None:
            raise ValueError(
                f"DDP_AUDIT_HOST is {self.host!r}, which others can reach: set DDP_AUDIT_TOKEN, or use 127.0.0.1"
            )
        return self

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names this service answers to."""
        return self.allowed_hosts or (*LOOPBACK_NAMES, self.host)


def load_settings(**overrides: Any) -> Settings:
    """Return the settings: environment, then `overrides` that are not None."""
    return Settings(**{name: value for name, value in overrides.items() if value is not None})
