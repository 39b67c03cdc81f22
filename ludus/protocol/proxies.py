"""Proxies of the environment (`http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`): one rule for all clients of Ludus.

Calls to this machine are never sent through a proxy, which could not reach it. The libraries' own rules differ from one
another: some take networks (`10.0.0.0/8`) in `no_proxy`, others fail on them.
"""

import ipaddress
import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ludus.protocol.tls import is_loopback


def reached_directly(host: str) -> bool:
    """Whether calls to `host` go through no proxy: it is this machine, or `no_proxy` names it, or a network of it."""
    host = host.rstrip(".").lower()
    address = _address(host)
    if address is not None and (address.is_loopback or address.is_unspecified):
        return True
    if is_loopback(host) or host.endswith(".localhost") or proxy_bypass(host):
        return True
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    networks = [part.strip().strip("[]") for part in exempt.split(",")]
    return address is not None and any(_contains(network, address) for network in networks)


def proxy_of(url: str) -> str | None:
    """Return the proxy for requests to `url`; None where they go there directly."""
    parts = urlsplit(url)
    named = getproxies()
    proxy = named.get(parts.scheme) or named.get("all")
    if not proxy or reached_directly(parts.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def without_password(proxy: str) -> str:
    """Return a proxy's address without the name and the password in it."""
    parts = urlsplit(proxy)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is written as, in any form that the system takes (`127.1`); None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            return ipaddress.ip_address(socket.inet_aton(host))
        except (OSError, ValueError):
            return None
    return getattr(address, "ipv4_mapped", None) or address


def _contains(network: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
