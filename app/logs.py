"""The log of web, worker and commands: one structured line per event on standard error, without secrets."""

import logging
import sys
from typing import Any, Final, TextIO

import structlog
from pydantic import SecretStr
from structlog.typing import EventDict, Processor, WrappedLogger

from app.settings import Settings

HIDDEN: Final = "[hidden]"
SHORTEST_SECRET: Final = 4
"""Replacing shorter secrets everywhere would garble ordinary words and reveal the secrets by the gaps."""


def configure(settings: Settings, stream: TextIO | None = None, *, level: int = logging.INFO) -> None:
    """Send structured lines and those of the libraries to `stream`, by default standard error, from `level` on.

    Every program calls this once, before it logs; commands that print an answer log only warnings.
    """
    target = sys.stderr if stream is None else stream
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not target.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # The plain traceback: a traceback with local variables would reveal headers and settings.
        structlog.processors.format_exc_info,
        Redaction(settings),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    renderer: Processor = structlog.processors.JSONRenderer(sort_keys=True) if as_json else _text
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        # A server started in this process may have given these loggers its own level and handlers.
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate, logger.disabled = [], True, False
        logger.setLevel(logging.NOTSET)
    for name in ("httpx", "httpcore", "alembic"):  # httpx logs full URLs, including the webhook's
        logging.getLogger(name).setLevel(logging.WARNING)


_LOGFMT: Final = structlog.processors.LogfmtRenderer(
    key_order=["timestamp", "level", "action", "event"], bool_as_flag=False
)
_CONTROLS: Final = {
    code: f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def _text(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """Return a line without terminal control characters: a requested path may contain escape sequences."""
    return _LOGFMT(logger, method, event).translate(_CONTROLS)


class Redaction:
    """Replaces every secret of the settings anywhere in a line."""

    def __init__(self, settings: Settings) -> None:
        values = [getattr(settings, name) for name in type(settings).model_fields]
        texts = {value.get_secret_value() for value in values if isinstance(value, SecretStr)}
        self._secrets = sorted((text for text in texts if len(text) >= SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Return the line without secrets."""
        return {name: self._clean(value) for name, value in event.items()} if self._secrets else event

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, dict):
            return {self._clean(name): self._clean(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(item) for item in value]
        return value
