"""Channel options that every Ludus client and server agrees on. The numbers are part of the contract in
proto/README.md."""

from typing import Final

from ludus.protocol.proxies import reached_directly

GATEWAY_PORT: Final = 7070
"""Default port at which a server takes games."""
DEFAULT_SERVER: Final = f"127.0.0.1:{GATEWAY_PORT}"
"""Address of the gateway of `ludus up`."""
GATEWAY_VARIABLE: Final = "LUDUS_SIMULATOR_SERVER"
"""Environment variable with the gateway's host:port, for commands that start simulators."""
MAX_MESSAGE_BYTES: Final = 64 << 20
"""Largest message that a client accepts, and a server's default."""
KEEPALIVE_SECONDS: Final = 20
"""A side that has heard nothing for this long sends an HTTP/2 ping."""
KEEPALIVE_TIMEOUT_SECONDS: Final = 10
"""A connection whose ping stays unanswered for this long is dead."""
MIN_PING_SECONDS: Final = 5
"""Servers end a connection that pings more often than this."""
DIRECT_SECONDS: Final = 2.0
"""A collector that cannot be reached within this time is reached through the gateway instead."""
TICKET_METADATA: Final = "ludus-ticket"
"""Metadata of Connect that repeats the ticket, so that a gateway can route the stream without decoding it; a Unity
player's calls carry it here alone."""
SESSION_ID_METADATA: Final = "ludus-session-id"
"""Metadata of a Unity player's calls: whose they are. Without it they belong to the connection that they come by."""
CLIENT_METADATA: Final = "ludus-client"
"""Metadata of a Unity player's calls: its client, such as `ludus-unity/1.0`."""
PARKS_METADATA: Final = "ludus-parks"
"""Metadata of the calls of a player that may fall silent for as long as it likes: an Editor, which people pause."""
CLOSE_METADATA: Final = "ludus-close-bin"
"""Trailing metadata of the last reply (status 400) to a Unity player: a serialised `ludus.v1.Close`."""
SERVICE: Final = "/ludus.v1.SimulationService/"
"""Prefix of the methods of the native protocol."""
COLLECTOR_SERVICE: Final = "/ludus.v1.CollectorService/"
"""Prefix of the methods for edge collectors."""
EXCHANGE: Final = "/communicator_objects.UnityToExternalProto/Exchange"
"""The only method of ML-Agents' protocol."""
REASON_METADATA: Final = "ludus-reason"
"""Trailing metadata of a failed call: the error's stable name."""
COMMUNICATION_VERSION: Final = "1.5.0"
"""Version of ML-Agents' protocol: the same major number is compatible (0.x: the same minor, too)."""
ML_AGENTS_VERSION: Final = "1.1.0"
"""The release of ML-Agents' trainer that Ludus stands for."""
GAME_RECEIVES_BYTES: Final = 4 << 20
"""Largest reply that a Unity player takes: gRPC's default, which Unity's package leaves as it is."""
BROKEN: Final = frozenset({"UNAVAILABLE", "UNKNOWN", "INTERNAL"})
"""Names of the statuses with which gRPC ends a call whose connection breaks: which of them it is depends on what broke
first. Our own errors have `REASON_METADATA` beside such a status."""
WAITS_METADATA: Final = "ludus-waits-bin"
"""Initial metadata of a Join that the gateway holds: what the run waits for, a sentence in UTF-8."""
STATE_METADATA: Final = "ludus-run-state"
"""Trailing metadata of a Join that failed with `run_ended`: the run's final state."""

Options = list[tuple[str, int]]

_COMMON: Final[Options] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
    ("grpc.http2.max_pings_without_data", 0),
]


def client_options(host: str) -> Options:
    """Options of a channel to `host`, which is reached through the proxy that the environment names for it, if any."""
    options = [*_COMMON, ("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 2000)]
    if reached_directly(host):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def server_options(max_message_bytes: int = MAX_MESSAGE_BYTES) -> Options:
    """Options of a server. `so_reuseport` is off, so that a taken port is an error instead of a second listener."""
    return [
        *(option for option in _COMMON if option[0] != "grpc.max_receive_message_length"),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # The first is the name that gRPC's core reads; the second is that of its documentation.
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_SECONDS * 1000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_SECONDS * 1000),
    ]
