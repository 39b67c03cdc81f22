"""Server-sent events, as text."""

from collections.abc import Iterator


def server_sent(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Parse a stream of server-sent events into (event, data). Comments are pings and say nothing."""
    kind, data = "message", list[str]()
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "message", []
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
