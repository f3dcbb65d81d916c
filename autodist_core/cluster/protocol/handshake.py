"""A handshake: each end of a TCP connection proves to the other one that it knows a secret, without sending it.

In: a connected socket, the secret, and the roles of the two ends. Out: a return when the other end knows the secret,
and a ValueError when it does not. The probes use the secret of a run, which the chief draws at random. A chief and the
agents of a scheduler use the secret of a job, which the job's environment holds.
"""

import hashlib
import hmac
import os
import socket

from autodist_core.errors import LaunchError

SECRET = "AUTODIST_SECRET"
"""The environment variable that holds the secret of a job."""
_NONCE_BYTES, _PROOF_BYTES = 32, 32
_NOT_OF_THIS_RUN = "the program that answers does not belong to this run"


def job_secret() -> bytes:
    """The secret of this job, from the environment; a LaunchError if there is none, or a short one.

    >>> os.environ["AUTODIST_SECRET"] = "0123456789abcdef"
    >>> job_secret()
    b'0123456789abcdef'
    >>> del os.environ["AUTODIST_SECRET"]
    """
    text = os.environ.get(SECRET, "")
    if len(text) < 16:
        raise LaunchError(
            "",
            f"{SECRET} is {'too short' if text else 'not set'}: agents that a scheduler starts and their chief need "
            "the same one, of at least 16 characters, in their environment. In a batch script, before they start: "
            f"export {SECRET}=$(openssl rand -hex 32)"
        )
    return text.encode()


def shake_hands(connection: socket.socket, secret: bytes, own_role: bytes, other_role: bytes) -> None:
    """Prove to the other end that this one knows the secret, and check the other end's proof.

    Each end sends a random number and answers the other end's number with a keyed hash of its own role and that number.
    A ValueError says that the other end does not know the secret.

    >>> from threading import Thread
    >>> here, there = socket.socketpair()
    >>> other = Thread(target=shake_hands, args=(there, b"of this run", b"listener", b"caller"))
    >>> other.start()
    >>> shake_hands(here, b"of this run", b"caller", b"listener")
    >>> other.join(), here.close(), there.close()
    (None, None, None)
    """
    own_nonce = os.urandom(_NONCE_BYTES)
    connection.sendall(own_nonce)
    connection.sendall(_proof(secret, own_role, receive_exactly(connection, _NONCE_BYTES)))
    if not hmac.compare_digest(receive_exactly(connection, _PROOF_BYTES), _proof(secret, other_role, own_nonce)):
        raise ValueError(_NOT_OF_THIS_RUN)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Receive `count` bytes; a ValueError if the other end closes the connection before.

    >>> here, there = socket.socketpair()
    >>> there.sendall(b"four")
    >>> receive_exactly(here, 4), here.close(), there.close()
    (b'four', None, None)
    """
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ValueError(_NOT_OF_THIS_RUN)
        data += more
    return data


def _proof(secret: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret, role + nonce, hashlib.sha256).digest()
