"""Where messages may go."""

import socket

import pytest

from server.webhooks.errors import AddressInvalid
from server.webhooks.guard import AddressRefused, GuardedBackend, check_url, is_public


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
        "::ffff:0:127.0.0.1",
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


NOTATIONS = {
    "one number": "2130706433",
    "one number of a public address": "16843009",
    "one number of base 16": "0x7f000001",
    "one number of base 8": "017700000001",
    "two numbers": "127.1",
    "three numbers": "127.0.1",
    "five numbers": "127.0.0.1.1",
    "base 16": "0x7f.1",
    "base 16 in capitals": "0X7F.0.0.1",
    "base 16 without digits": "127.0.0.0x",
    "base 8": "0177.0.0.1",
    "leading zeros": "127.000.000.001",
    "a public address with leading zeros": "010.8.8.8",
    "zero": "0",
    "zeros": "0.0.0.0",
    "too much": "127.0.0.256",
    "beyond 32 bits": "4294967296",
    "a dot at the end": "127.0.0.1.",
    "a number with a dot at the end": "2130706433.",
    "two dots at the end": "127.0.0.1..",
    "a name with dots at the end": "localhost..",
    "a name below localhost": "a.localhost",
    "a name below localhost with a dot": "a.LocalHost.",
    "an empty label": "example..com",
    "a dot alone": ".",
    "a percent sign": "127%2e0.0.1",
    "a percent sign before a dot": "127.0.0.1%2e",
    "a backslash": "example.com\\.example.org",
    "mapped": "[::ffff:127.0.0.1]",
    "mapped in base 16": "[::ffff:7f00:1]",
    "mapped and written out": "[0:0:0:0:0:ffff:7f00:1]",
    "compatible": "[::127.0.0.1]",
    "loopback": "[::1]",
    "unspecified": "[::]",
    "NAT64": "[64:ff9b::127.0.0.1]",
    "6to4": "[2002:7f00:1::]",
    "with a scope": "[fe80::1%25eth0]",
    "the dot of CJK": "127\u30020\u30020\u30021",
    "wide digits": "\uff11\uff12\uff17.0.0.1",
    "the full stop of wide text": "localhost\uff0e",
    "cloud metadata": "2852039166",
}
"""Of hosts that a system may read as another one than a person does, or as one of the own network."""


@pytest.mark.parametrize("host", NOTATIONS.values(), ids=NOTATIONS)
@pytest.mark.parametrize("form", ["https://{}/", "https://{}:8443/hook?a=1", "https://{}"])
def test_a_notation_that_leads_inside_or_is_no_plain_one_is_refused_as_text(form: str, host: str) -> None:
    with pytest.raises(AddressInvalid):
        check_url(form.format(host), private=False)


@pytest.mark.parametrize(
    "url",
    [
        "https://1.1.1.1/",
        "https://[2606:4700:4700::1111]:8443/hook",
        "https://[::ffff:1.1.1.1]/",
        "https://Example.org./hook",
        "https://127.0.0.1.example.org/",
        "https://0x7f.example.org/",
        "https://my_hooks.example.org/a%20b",
        "https://xn--bcher-kva.example/",
    ],
)
def test_names_and_addresses_of_the_internet_are_taken_as_they_are(url: str) -> None:
    assert check_url(url, private=False) == url


@pytest.mark.parametrize("notation", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
def test_other_notations_of_inner_addresses_are_refused_when_they_are_resolved(notation: str) -> None:
    assert socket.getaddrinfo(notation, 80)[0][4][0] == "127.0.0.1"  # what makes them dangerous
    with pytest.raises(AddressRefused):
        GuardedBackend(private=False, seconds=5).connect_tcp(notation, 443)
