"""Addresses in the one form in which they are compared, and sockets that listen on a free port."""

import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

_BACKLOG = 128


def plain_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as packets carry it: without an IPv6 zone, and as IPv4 where IPv6 only wraps an IPv4 address.

    >>> plain_address("::ffff:10.0.0.1"), plain_address("fe80::1%eth0")
    (IPv4Address('10.0.0.1'), IPv6Address('fe80::1'))
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def ip_addresses(address: str) -> set[str]:
    """The IP addresses that an address of the resource spec stands for, as this machine resolves it.

    >>> ip_addresses("10.0.0.1")
    {'10.0.0.1'}
    """
    return {str(plain_address(str(place[0]))) for _, place in _resolved(address)}


def is_of_this_machine(address: str) -> bool:
    """Whether an address of the resource spec is an address of this machine: only such a one can be bound.

    >>> is_of_this_machine("localhost"), is_of_this_machine("192.0.2.1"), is_of_this_machine("no.such.host.invalid")
    (True, False, False)
    """
    for family, place in _resolved(address):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind(place)
            return True
    return False


def _resolved(address: str) -> list[tuple[int, Any]]:
    """The address as sockets take it, each with its family; empty if it is a name that this machine does not know."""
    with contextlib.suppress(OSError):
        return [(found[0], found[4]) for found in socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)]
    return []


def listening_socket(ports: Sequence[int]) -> socket.socket:
    """A socket that listens for IPv4 and IPv6 on the first free port of `ports`, or on any free port without `ports`.

    >>> with listening_socket([]) as first:
    ...     port = first.getsockname()[1]
    ...     listening_socket([port])
    Traceback (most recent call last):
    OSError: no port is free of ...
    """
    taken: list[int] = []
    for port in ports or [0]:
        listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
        try:
            # Connections that have ended do not keep a port from being used again; another listener does.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if listener.family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(("::" if listener.family == socket.AF_INET6 else "0.0.0.0", port))
            listener.listen(_BACKLOG)
            return listener
        except OSError:
            listener.close()
            taken.append(port)
    few = ", ".join(map(str, taken[:5])) + (" ..." if len(taken) > 5 else "")
    raise OSError(f"no port is free of {few}")
