"""Logging of the server and the worker: structlog and the standard library's loggers through one formatter.

Lines go to standard error, as JSON (one object per line: `timestamp`, `level`, `event`, `process`, then the context) or
for people. Called once, by the mains; nothing else configures logging, and importing this module changes nothing.
Warnings and uncaught errors of threads and the process are lines like all others, with the traceback as `exception`. A
process that logs ends with any of its threads (`ludus.threads`).

Ids are bound where they become valid, never passed by hand: to the process (`bind_process`) if they are valid for all
its threads until its end, to the context (`structlog.contextvars`) if for one request, call or attempt.
"""

import logging
import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ludus.console import tolerate
from ludus.threads import end_with_any_thread

LogFormat = Literal["json", "console"]

QUIET = ("httpx2", "httpcore2", "alembic", "kombu", "amqp", "urllib3")
"""Libraries whose information is noise here: their warnings are kept."""
_TRACEBACKS = {"exception", "stack"}


WORKER_VARIABLE: Final = "LUDUS_WORKER_ID"
"""Environment variable by which the processes of a worker's slot know whose they are."""

_of_process: dict[str, Any] = {}
"""Ids that hold for this process: like the loggers' configuration, there is one per process."""


def bind_process(**ids: object) -> None:
    """Add ids to every line of this process, of all threads."""
    _of_process.update(ids)


def redirect_output(path: Path) -> None:
    """Append standard output and error of this process to a file, also those of libraries and of later children."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def configure_logging(process: str, *, log_format: LogFormat = "json", level: str = "info") -> None:
    """Send all logging of this process to standard error; `process` names it on every line.

    A line that cannot be written is lost, and ends nothing (`ludus.console`).
    """
    tolerate()

    def name_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        for name, value in _of_process.items():
            event.setdefault(name, value)
        return event

    if worker_id := os.environ.get(WORKER_VARIABLE):
        bind_process(worker_id=worker_id)

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
    renderers: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    if log_format == "console":
        in_colors, plain = sys.stderr.isatty(), structlog.dev.plain_traceback
        renderers = [_on_one_line, structlog.dev.ConsoleRenderer(colors=in_colors, exception_formatter=plain)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_death
    end_with_any_thread(_log_thread_death)


def _log_death(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        structlog.get_logger().critical("process_failed", exc_info=(kind, error, trace))


def _log_thread_death(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None:
        name = None if hook.thread is None else hook.thread.name
        trace = (hook.exc_type, hook.exc_value, hook.exc_traceback)
        structlog.get_logger().critical("thread_failed", thread=name, exc_info=trace)


def _on_one_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape characters that would begin a line or control the terminal: names and texts come from users."""
    for key, value in event.items():
        if isinstance(value, str) and key not in _TRACEBACKS and not value.isprintable():
            event[key] = "".join(
                sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in value
            )
    return event
