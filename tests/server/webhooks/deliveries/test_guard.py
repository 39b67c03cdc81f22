"""Where messages may go."""

import socket

import pytest

from server.webhooks.deliveries.guard import AddressRefused, GuardedBackend, check_url, is_public
from server.webhooks.errors import AddressInvalid


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:53aa:64c::1",
    ],
)
def test_addresses_of_the_own_network_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "ftp://example.com/",
        "https://",
        "https:///path",
        "https://user:secret@example.com/",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://[::1/",
        "https://exa mple.com/",
        "https://example.com/\r\nX: y",
        "https://localhost/",
        "https://LOCALHOST./",
        "https://127.0.0.1/",
        "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/latest/meta-data",
        "/hook",
        "x" * 3000,
    ],
)
def test_an_address_that_is_none_or_leads_inside_is_refused_with_a_reason(url: str) -> None:
    with pytest.raises(AddressInvalid, match=r"The webhook's url cannot be used: .+"):
        check_url(url, private=False)


def test_with_the_operators_permission_plain_http_and_the_own_network_are_fine() -> None:
    for url in ("http://127.0.0.1:8000/hook", "https://10.0.0.1/", "http://intranet/hook?a=1"):
        assert check_url(url, private=True) == url


def test_a_name_that_stands_for_an_inner_address_is_refused_when_it_is_resolved() -> None:
    backend = GuardedBackend(private=False, seconds=5)

    with pytest.raises(AddressRefused, match="not an address of the public internet"):
        backend.connect_tcp("localhost", 443)


@pytest.mark.parametrize("notation", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
def test_other_notations_of_inner_addresses_are_refused_when_they_are_resolved(notation: str) -> None:
    assert socket.getaddrinfo(notation, 80)[0][4][0] == "127.0.0.1"  # what makes them dangerous
    with pytest.raises(AddressRefused):
        GuardedBackend(private=False, seconds=5).connect_tcp(notation, 443)
