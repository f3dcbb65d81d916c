"""Who may connect: a socket filter on a listening socket of this process, in the kernel, that drops strangers' packets.

TensorFlow's server listens on all interfaces and runs any graph it is sent. The filter is a classic BPF program on its
listening socket, which needs no privileges: a packet from an address that is not listed gets no answer at all.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import stat
import struct
import time
from collections.abc import Iterable, Iterator

from autodist_core.cluster.protocol.sockets import plain_address

_SO_ATTACH_FILTER = 26
_NETWORK = 0xFFF00000  # offsets from here on count from the IP header
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP, _JUMP_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
_ACCEPT, _DROP = 0x7FFFFFFF, 0
_UNACKED = 24  # of a listening socket's TCP_INFO: how many connections wait to be accepted
_ACCEPT_SECONDS = 5.0

Instruction = tuple[int, int, int, int]


def admit_only(port: int, addresses: Iterable[str]) -> int:
    """Let only these IPv4 and IPv6 addresses connect to the port of this process; returns how many strangers had.

    Whoever had connected before the filter was there, and is not listed, is disconnected; the process must accept
    connections meanwhile.
    """
    allowed = {ipaddress.ip_address(address) for address in addresses}
    program = filter_for(allowed)
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code)
    option = struct.pack("HL", len(program), ctypes.addressof(buffer))
    filtered = 0
    for sock in _listening(port):
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
        filtered += 1
    if not filtered:
        raise OSError(f"this process does not listen on port {port}")
    _until_all_are_accepted(port)
    strangers = 0
    for sock in _own_sockets(port):
        if _peer(sock) not in {None, *allowed}:
            sock.shutdown(socket.SHUT_RDWR)
            strangers += 1
    return strangers


def filter_for(allowed: Iterable[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> list[Instruction]:
    """The BPF program that accepts packets from these sources only.

    >>> len(filter_for([ipaddress.ip_address("10.0.0.1")]))
    14
    """
    tests = [*_version(4, [a for a in allowed if a.version == 4]), *_version(6, [a for a in allowed if a.version == 6])]
    return [*tests, (_RETURN, 0, 0, _DROP)]


def _version(version: int, addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> list[Instruction]:
    """Accept the packets of one version of IP that come from these addresses; go on after it for all others."""
    start = _NETWORK + (12 if version == 4 else 8)
    body: list[Instruction] = []
    for address in addresses:
        words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
        checks: list[Instruction] = []
        for index, word in enumerate(words):
            left = 2 * (len(words) - index - 1) + 1  # to the end of this address's instructions
            checks += [(_LOAD_WORD, 0, 0, start + 4 * index), (_JUMP_EQUAL, 0, left, word)]
        body += [*checks, (_RETURN, 0, 0, _ACCEPT)]
    body.append((_RETURN, 0, 0, _DROP))
    return [
        (_LOAD_BYTE, 0, 0, _NETWORK), (_AND, 0, 0, 0xF0), (_JUMP_EQUAL, 1, 0, version << 4),
        (_JUMP, 0, 0, len(body)), *body,
    ]


def _listening(port: int) -> Iterator[socket.socket]:
    return (sock for sock in _own_sockets(port) if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _until_all_are_accepted(port: int) -> None:
    """Connections from before the filter that wait to be accepted are no sockets of the process yet."""
    end = time.monotonic() + _ACCEPT_SECONDS
    while any(_waiting(sock) for sock in _listening(port)):
        if time.monotonic() > end:
            raise OSError(f"this process does not accept the connections to port {port}")
        time.sleep(0.001)
    time.sleep(0.01)  # the last one has left the queue, and may be on its way to the process


def _own_sockets(port: int) -> Iterator[socket.socket]:
    """This process's TCP sockets with that port of its own, as duplicates that close when they are let go."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with sock:
            try:
                local = sock.getsockname()
            except OSError:
                continue
            is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
            if is_tcp and local[1] == port:
                yield sock


def _waiting(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED + 4)
    return int(struct.unpack_from("I", info, _UNACKED)[0])


def _peer(sock: socket.socket) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return plain_address(sock.getpeername()[0])
    except OSError:
        return None
