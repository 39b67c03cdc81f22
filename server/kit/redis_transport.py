"""Redis as a queue of wake-ups: kombu's transport, which discards what it cannot parse (`server.kit.queue`)."""

from typing import Any

from kombu.transport import redis

from server.kit.queue import WakeUpTransport, discard, queue_name


class RedisChannel(redis.Channel):
    """A channel that outlives any message."""

    def _brpop_read(self, **options: object) -> Any:
        self.connection.delivers = False
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]  # kombu has no types
        except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
            if self.connection.delivers:
                raise  # the message was parsed
            discard(queue_name(None), error)
            return True


class RedisTransport(WakeUpTransport, redis.Transport):
    """A transport over Redis."""

    Channel = RedisChannel
    delivers = False
    """Whether the newest message was parsed, and is on its way to the consumer."""

    def _deliver(self, message: Any, queue: str) -> None:
        self.delivers = True
        super()._deliver(message, queue)
