"""Logging of the server and the worker: structlog and the standard library's loggers through one formatter.

Lines go to standard error, as JSON (one object per line: `timestamp`, `level`, `event`, `process`, then the context) or
for people. Called once, by the mains; nothing else configures logging, and importing this module changes nothing.
"""

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["json", "console"]

QUIET = ("httpx", "httpcore", "alembic", "kombu", "amqp", "urllib3")
"""Libraries whose information is noise here: their warnings are kept."""
_TRACEBACKS = {"exception", "stack"}


def configure_logging(process: str, *, log_format: LogFormat = "json", level: str = "info") -> None:
    """Send all logging of this process to standard error; `process` names it on every line."""

    def name_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_process,
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(log_format)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _on_one_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape what would begin another line, or paint the terminal: names and texts come from anybody."""
    for key, value in event.items():
        if isinstance(value, str) and key not in _TRACEBACKS and not value.isprintable():
            event[key] = "".join(
                each if each.isprintable() else each.encode("unicode_escape").decode() for each in value
            )
    return event


def _renderers(log_format: LogFormat) -> list[Processor]:
    if log_format == "console":
        return [
            _on_one_line,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
