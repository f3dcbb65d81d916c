"""The admission filter: the kernel drops packets to a listening socket of this process unless their source is listed.

TensorFlow's server listens on all interfaces and runs any graph that it is sent. The filter is a classic BPF program on
the server's listening socket and needs no privileges. A program at an address that is not listed, a stranger, gets no
answer at all. In: a port of this process and the addresses to admit. Out: the number of strangers that were cut off.
"""

import contextlib
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
_NETWORK = 0xFFF00000  # offsets from this value on count from the IP header
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP, _JUMP_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
_ACCEPT, _DROP = 0x7FFFFFFF, 0
_UNACKED = 24  # where TCP_INFO of a listening socket has the number of connections that wait to be accepted
_ACCEPT_SECONDS = 5.0

Instruction = tuple[int, int, int, int]


def admit_only(port: int, addresses: Iterable[str]) -> int:
    """Let only these IPv4 and IPv6 addresses connect to a port of this process; return the number of strangers cut off.

    A stranger that connected before the filter was in place is disconnected. Another thread of the process must accept
    connections meanwhile.

    >>> with socket.create_server(("127.0.0.1", 0)) as listener:
    ...     admit_only(listener.getsockname()[1], ["127.0.0.1"])
    0
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
    """The BPF program that accepts packets from these source addresses only.

    >>> len(filter_for([ipaddress.ip_address("10.0.0.1")]))
    14
    """
    tests = [*_version(4, [a for a in allowed if a.version == 4]), *_version(6, [a for a in allowed if a.version == 6])]
    return [*tests, (_RETURN, 0, 0, _DROP)]


def _version(version: int, addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> list[Instruction]:
    """Accept packets of one IP version from these addresses, drop its other packets, and pass over other versions."""
    start = _NETWORK + (12 if version == 4 else 8)
    body: list[Instruction] = []
    for address in addresses:
        words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
        checks: list[Instruction] = []
        for index, word in enumerate(words):
            left = 2 * (len(words) - index - 1) + 1  # as far as the instruction after this address's own
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
    """Wait until the process has accepted all connections: one that waits is not yet a socket of the process."""
    end = time.monotonic() + _ACCEPT_SECONDS
    while any(_waiting(sock) for sock in _listening(port)):
        if time.monotonic() > end:
            raise OSError(f"this process does not accept the connections to port {port}")
        time.sleep(0.001)
    time.sleep(0.01)  # the last connection has left the queue, and becomes a socket of the process any moment now


def _own_sockets(port: int) -> Iterator[socket.socket]:
    """Yield duplicates of this process's TCP sockets on a local port; each is closed when the next one is asked for."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with sock, contextlib.suppress(OSError):
            local = sock.getsockname()
            is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
            if is_tcp and local[1] == port:
                yield sock


def _waiting(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED + 4)
    return int(struct.unpack_from("I", info, _UNACKED)[0])


def _peer(sock: socket.socket) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(OSError):
        return plain_address(sock.getpeername()[0])
    return None
