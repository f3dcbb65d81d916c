"""Each end of a connection proves to the other one that it knows a secret; the secret itself is never sent."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket

from autodist_core.errors import LaunchError

SECRET = "AUTODIST_SECRET"
_NONCE = 32


def job_secret() -> bytes:
    """The secret that the processes of a job share."""
    text = os.environ.get(SECRET, "")
    if len(text) < 16:
        raise LaunchError(
            "",
            f"{SECRET} is {'too short' if text else 'not set'}: agents that a scheduler starts and their chief need "
            "the same one, of at least 16 characters, in their environment. In a batch script, before they start: "
            f"export {SECRET}=$(openssl rand -hex 32)"
        )
    return text.encode()


def shake_hands(connection: socket.socket, secret: bytes, own: bytes, other: bytes) -> None:
    """Each sends a random number and proves, by the answer to the other's, that it knows the secret."""
    mine = os.urandom(_NONCE)
    connection.sendall(mine)
    theirs = receive_exactly(connection, _NONCE)
    connection.sendall(_proof(secret, own, theirs))
    if not hmac.compare_digest(receive_exactly(connection, 32), _proof(secret, other, mine)):
        raise ValueError("something answers there that is not of this run")


def _proof(secret: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret, role + nonce, hashlib.sha256).digest()


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Receive `count` bytes; a ValueError says that the other end closed the connection before."""
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ValueError("something answers there that is not of this run")
        data += more
    return data
