"""Ports are taken before anything starts, and kept."""

import socket

import pytest

from server.kit.ports import PortInUse, address, listen, listens, reserve


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_reserved_port_can_be_listened_on_by_name_again_and_again_but_only_once_at_a_time(host: str) -> None:
    with reserve(host, 0) as reserved:
        port = reserved.getsockname()[1]
        for _ in range(2):
            with socket.create_server((host, port)):
                assert listens(address(host, port))
                with pytest.raises(PortInUse, match=f"{port}.*--gateway-port"):
                    reserve(host, port)
        assert not listens(address(host, port))


def test_a_reserved_port_is_given_to_nobody_by_chance() -> None:
    with reserve("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        others = [socket.create_server(("127.0.0.1", 0)) for _ in range(500)]
        taken = {other.getsockname()[1] for other in others}
        for other in others:
            other.close()

        assert port not in taken


def test_a_taken_port_is_told_with_its_setting() -> None:
    with (
        listen("127.0.0.1", 0) as taken,
        pytest.raises(PortInUse, match=r"HTTP API needs it.*--port or LUDUS_API__PORT"),
    ):
        listen("127.0.0.1", taken.getsockname()[1])


def test_a_client_on_this_machine_dials_loopback_where_all_interfaces_are_listened_on() -> None:
    assert address("0.0.0.0", 7070) == "127.0.0.1:7070"
    assert address("::", 7070) == "[::1]:7070"
    assert address("games.example", 7070) == "games.example:7070"
