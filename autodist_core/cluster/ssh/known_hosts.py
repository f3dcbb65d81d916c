"""``known_hosts`` files: the key that a host must show, in the format that OpenSSH documents in sshd(8).

In: the files and the key that a server showed. Out: whether the key is known, unknown, changed or revoked, and the
message that refuses it.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HostKey:
    """A host's public key.

    >>> print(HostKey("ssh-ed25519", "AAAA"))
    ssh-ed25519 SHA256:cJ6AyISHokEeHuTfufIqhhSS0gxHZRUMDHlKvXD4FHw
    """

    type: str
    base64: str

    @property
    def kind(self) -> str:
        """The short name of its type, as the tools of OpenSSH use it: ``ed25519``, ``ecdsa``, ``rsa``."""
        return self.type.removeprefix("ssh-").split("-")[0]

    @property
    def fingerprint(self) -> str:
        """The fingerprint that ``ssh-keygen -l`` prints."""
        digest = hashlib.sha256(base64.b64decode(self.base64)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.type} {self.fingerprint}"


@dataclass(frozen=True)
class KnownKey:
    r"""A line of a ``known_hosts`` file that names the host.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     file = Path(home, "known_hosts")
    ...     _ = file.write_text("10.0.0.2 ssh-ed25519 AAAA\n@revoked 10.0.0.2 ssh-ed25519 BBBB\n")
    ...     for found in lookup([file], "10.0.0.2"):
    ...         print(found.key.base64, Path(found.where).name, found.revoked)
    AAAA known_hosts:1 False
    BBBB known_hosts:2 True
    """

    key: HostKey
    where: str
    """The file and the line."""
    revoked: bool = False


def names(host: str, port: int) -> tuple[str, ...]:
    """The names under which a host's key may be known.

    >>> names("Worker", 22), names("10.0.0.2", 2222)
    (('worker',), ('[10.0.0.2]:2222', '10.0.0.2'))
    """
    host = host.lower()
    return (host,) if port == 22 else (f"[{host}]:{port}", host)


def lookup(files: Iterable[Path], name: str) -> tuple[KnownKey, ...]:
    """The entries of the files that name ``name``; a missing file has none.

    >>> lookup([Path("/missing/known_hosts")], "10.0.0.2")
    ()
    """
    found = []
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            continue
        for number, line in enumerate(lines, 1):
            fields = line.split()
            marker = fields.pop(0) if line.startswith("@") else ""
            # Lines of certificate authorities are left out: paramiko cannot check the keys that these sign.
            if line.startswith("#") or len(fields) < 3 or marker not in ("", "@revoked"):
                continue
            if _matches(fields[0], name) and _is_base64(fields[2]):
                found.append(KnownKey(HostKey(fields[1], fields[2]), f"{file}:{number}", marker == "@revoked"))
    return tuple(found)


def verdict(files: Iterable[Path], known_as: Iterable[str], key: HostKey) -> tuple[str, tuple[KnownKey, ...]]:
    """``known``, ``unknown``, ``changed`` or ``revoked``, with the entries that say so; ``known_as``: its names.

    >>> verdict([], ["10.0.0.2"], HostKey("ssh-ed25519", "AAAA"))
    ('unknown', ())
    """
    files = tuple(files)
    first, *others = (lookup(files, name) for name in known_as)
    every = (*first, *(entry for entries in others for entry in entries))
    same = tuple(entry for entry in every if entry.key == key)
    if revoked := tuple(entry for entry in same if entry.revoked):
        return "revoked", revoked
    if same:
        return "known", same
    # The name without a port means the server on port 22, which may be another server: its key is not expected here.
    expected = tuple(entry for entry in first if not entry.revoked)
    return ("changed", expected) if expected else ("unknown", ())


def refusal(verdict: str, key: HostKey, entries: tuple[KnownKey, ...], accept: str) -> str:
    """Why a key is refused, and what to do; ``accept`` is the command that accepts the key.

    >>> print(refusal("unknown", HostKey("ssh-ed25519", "AAAA"), (), "ssh 10.0.0.2 exit"))
    its host key is not known: ssh-ed25519 SHA256:cJ6AyISHokEeHuTfufIqhhSS0gxHZRUMDHlKvXD4FHw. Compare that with what
    `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints there, and accept the key with `ssh 10.0.0.2 exit`
    """
    if verdict == "unknown":
        file = f"/etc/ssh/ssh_host_{key.kind}_key.pub"
        return (
            f"its host key is not known: {key}. Compare that with what `ssh-keygen -lf {file}` prints there, and "
            f"accept the key with `{accept}`"
        )
    if verdict == "revoked":
        return (
            f"its host key {key} is revoked ({', '.join(entry.where for entry in entries)}): do not trust this machine"
        )
    expected = ", ".join(f"{entry.key} ({entry.where})" for entry in entries)
    return (
        f"ITS HOST KEY HAS CHANGED. It shows {key}; known is {expected}. Another machine may answer in its place. "
        f"If you know that it was installed anew, delete the lines named, and accept the new key with `{accept}`"
    )


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False


def _matches(field: str, name: str) -> bool:
    """Whether the first field of a line, a list of patterns or a hash, matches ``name``.

    >>> _matches("10.0.0.?,!10.0.0.9", "10.0.0.2"), _matches("10.0.0.?,!10.0.0.9", "10.0.0.9")
    (True, False)
    """
    if field.startswith("|1|"):
        try:
            salt, hashed = (base64.b64decode(part) for part in field.split("|")[2:4])
        except (ValueError, binascii.Error):
            return False
        return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), hashed)
    matched = False
    for pattern in field.lower().split(","):
        expression = re.escape(pattern.removeprefix("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(expression, name):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched
