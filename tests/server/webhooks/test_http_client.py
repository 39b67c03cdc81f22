"""One message to one receiver, over real sockets."""

import socket
import threading
import time

import pytest

from server.webhooks.http_client import DeliveryClient, DeliveryRequest
from server.webhooks.messages import new_secret
from tests.ports import free_port
from tests.server.webhooks.receiver import Receiver

SECRET = new_secret()


def request(url: str) -> DeliveryRequest:
    return DeliveryRequest("msg_1", 1, "whk_1", url, [SECRET], '{"type":"run_created"}')


def client(timeout_seconds: float = 5.0) -> DeliveryClient:
    return DeliveryClient(private=True, timeout_seconds=timeout_seconds)


def test_a_message_arrives_signed(receiver: Receiver) -> None:
    result = client().send(request(receiver.url + "?a=1"))

    (received,) = receiver.received
    assert (result.succeeded, result.status, result.response) == (True, 200, "thank you")
    assert received.verified(SECRET) == {"type": "run_created"}
    assert (received.path, received.headers["content-type"]) == ("/hook?a=1", "application/json")
    assert received.headers["user-agent"].startswith("Ludus/")


@pytest.mark.parametrize("status", [400, 404, 410, 429, 500, 503])
def test_an_answer_that_is_no_success_is_a_failure_with_its_status(receiver: Receiver, status: int) -> None:
    receiver.status, receiver.headers = status, {"Retry-After": "7"}

    result = client().send(request(receiver.url))

    assert (result.succeeded, result.status, result.gone) == (False, status, status == 410)
    assert str(status) in str(result.error)
    assert result.retry_after == 7


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    receiver.status, receiver.headers = 307, {"Location": receiver.url}

    result = client().send(request(receiver.url))

    assert (result.status, len(receiver.received)) == (307, 1)
    assert "redirects are not followed" in str(result.error)


def test_of_a_long_answer_only_the_beginning_is_read(receiver: Receiver) -> None:
    receiver.body = b"x" * 50_000_000

    result = client().send(request(receiver.url))

    assert (result.succeeded, result.response) == (True, "x" * 1024)
    assert result.seconds < 2


def test_nobody_there_is_a_failure_with_a_sentence() -> None:
    result = client().send(request(f"http://127.0.0.1:{free_port()}/"))

    assert (result.succeeded, result.status) == (False, None)
    assert "refused" in str(result.error)


def test_a_receiver_that_does_not_answer_costs_the_time_out(receiver: Receiver) -> None:
    over = threading.Event()
    receiver.before = lambda: over.wait(10) and None

    result = client(0.3).send(request(receiver.url))
    over.set()

    assert result.error == "no complete answer within 0.3 s"
    assert 0.3 <= result.seconds < 2


def test_a_receiver_that_drips_costs_the_time_out_too() -> None:
    over = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000:
                if over.wait(0.05):
                    return
                connection.send(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=drip, args=(listening,))
        dripping.start()
        began = time.monotonic()
        result = client(0.5).send(request(f"http://127.0.0.1:{listening.getsockname()[1]}/"))
        seconds = time.monotonic() - began
        over.set()
        dripping.join()

    assert result.error == "no complete answer within 0.5 s"
    assert seconds < 2


def test_what_is_no_http_is_a_failure_with_a_sentence() -> None:
    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.send(b"SSH-2.0-OpenSSH\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        result = client().send(request(f"http://127.0.0.1:{listening.getsockname()[1]}/"))
        thread.join()

    assert "ProtocolError" in str(result.error)


def test_the_own_network_is_not_reached_without_permission(receiver: Receiver) -> None:
    guarded = DeliveryClient(private=False, timeout_seconds=5)

    by_text = guarded.send(request(receiver.url))
    by_name = guarded.send(request("https://localhost.localdomain:1/"))

    assert receiver.received == []
    assert "https://" in str(by_text.error)
    assert by_name.error is not None
