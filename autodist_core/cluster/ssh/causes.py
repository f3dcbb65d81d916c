"""Why there is no login, or no connection any more: from the lines that ``ssh`` logged to words with advice.

In: ssh's log, with the lines that begin with "debug1: ", and its standard error, which has what a jump host's ``ssh``
or a ProxyCommand says. Out: a sentence, and in brackets what ssh itself says.
"""

import re

from autodist_core.cluster.ssh.command import PASSPHRASE, PASSWORD

_PROXY = r"(?s)Executing proxy command: exec ([^\n]+)(?!.*Remote protocol version)"
_FAILED = (
    (_PROXY, "ssh's way to it (ProxyJump or ProxyCommand) fails. Run this in a terminal: {0}"),
    (r"connect to host \S+ port (\d+): Connection refused",
     "port {0} is closed: the machine answers, and no ssh server listens there. Start it, or correct 'port'"),
    (r"connect to host \S+ port (\d+): .*timed out",
     "no answer from port {0}: the machine is off, cut off, or behind a firewall that drops connections"),
    (r"connect to host \S+ port (\d+): (.+)",
     "no route to port {0} ({1}): the machine is off, or this one is not in its network"),
    (r"Could not resolve hostname (\S+): (.+)",
     "the name '{0}' does not resolve ({1}): write an address, or a name that this machine knows"),
    (r"Server host key: (\S+ \S+)\n(?s:.*)HOST IDENTIFICATION HAS CHANGED(?s:.*)Offending .*? in (\S+)",
     "ITS HOST KEY HAS CHANGED. It shows {0}; known is the key at {1}. Another machine may answer in its place. If you "
     "know that it was installed anew, delete the line named, and accept the new key with `{accept}`"),
    (r"Server host key: (\S+ \S+)\n(?s:.*) was revoked",
     "its host key {0} is revoked in known_hosts: do not trust this machine"),
    (r"Server host key: ((?:ssh-)?(\w+)\S* \S+)\n(?s:.*)No \S+ host key is known",
     "its host key is not known: {0}. Compare that with what `ssh-keygen -lf /etc/ssh/ssh_host_{1}_key.pub` prints "
     "there, and accept the key with `{accept}`"),
    (r"Authenticating to .*:(\d+) as '(.*)'\n(?s:.*)(?:Permission denied \(|Too many authentication failures)", ""),
    (r"(?m)^((?!debug1: ).+)\n(?:debug1: .*\n)*.*terminating, \d+ bad configuration options",
     "ssh's configuration cannot be used: {0}"),
    (r"kex_exchange_identification|ssh_dispatch_run_fatal|Connection (?:closed|reset)",
     "what listens there does not complete ssh's handshake: it is no ssh server, it refuses this machine, or more "
     "logins come at once than it takes (MaxStartups)"),
    (r"", "ssh failed"),
)  # fmt: skip
"""What ssh logs of a login that failed, and what it means."""
_LATE = (
    (r"Authenticated to", "the login was accepted, and nothing followed within {seconds:g} s"),
    (r"SSH2_MSG_NEWKEYS received",
     "no answer to the login within {seconds:g} s: the machine hangs, or the ssh agent of this one does"),
    (_PROXY,
     "ssh's way to it (ProxyJump or ProxyCommand) was not open within {seconds:g} s. Run this in a terminal: {0}"),
    (r"Connecting to \S+ .*? port (\d+)\.\n(?s:.*)Connection established",
     "port {0} accepts connections, and no ssh server answered within {seconds:g} s: the machine hangs, or something "
     "else listens there"),
    (r"Connecting to \S+ .*? port (\d+)\.\n",
     "no answer from port {0} within {seconds:g} s: the machine is off, cut off, or behind a firewall that drops "
     "connections"),
    (r"", "ssh found no address of it within {seconds:g} s: the network may be down"),
)  # fmt: skip
"""What ssh logs of a login that did not come to its end in time: the last stage that it reached comes first."""


def why_no_login(log: str, errors: str, accept: str, seconds: float | None = None) -> str:
    """Why ssh did not log in; after ``seconds`` if it was not waited for any longer. ``accept`` accepts a host's key.

    >>> print(why_no_login("ssh: connect to host 10.0.0.2 port 22: Connection refused", "", "ssh 10.0.0.2"))
    port 22 is closed: the machine answers, and no ssh server listens there. Start it, or correct 'port' (ssh: connect
    to host 10.0.0.2 port 22: Connection refused).
    >>> print(why_no_login("", "No user exists for uid 1000\\n", "ssh 10.0.0.2"))
    ssh failed (No user exists for uid 1000).
    """
    for pattern, rule in _LATE if seconds else _FAILED:
        if match := re.search(pattern, log):
            sentence = rule.format(*match.groups(), accept=accept, seconds=seconds) or _refusal(log, *match.groups())
            break
    said = last_words(log, 1 if pattern else 3)
    if pattern == _PROXY or not said:
        said = "; ".join(errors.split("\n")[-4:]).strip("; ") or said
    return f"{sentence} ({said})." if said else f"{sentence}."


def why_lost(log: str) -> str | None:
    """Why the connection was lost; None if the program that ssh started ended by itself.

    >>> print(why_lost("debug1: channel 0: new [client-session]\\nTimeout, server 10.0.0.2 not responding.\\n"))
    Timeout, server 10.0.0.2 not responding
    """
    session = re.search(r"channel (\d+): new .*client-session", log)
    if session and re.search(rf"channel {session[1]} rtype exit-", log):
        return None
    return last_words(log) or ("its ssh server closed it" if "Exit status -1" in log else "ssh was ended")


def last_words(log: str, most: int = 1) -> str:
    """The last lines of ssh's log that are for its user, so many at most, without a final dot.

    >>> last_words("Timeout, server 10.0.0.2 not responding.\\ndebug1: Exit status -1\\n")
    'Timeout, server 10.0.0.2 not responding'
    """
    lines = re.findall(r"^(?!debug1: |channel |Authenticated |Transferred: |Bytes per second: )(.*\S)", log, re.M)
    return "; ".join(lines[-most:]).removesuffix(".")


def _refusal(log: str, port: str, user: str) -> str:
    """The user whom the server does not let in, what was tried, what it accepts, and what to do."""
    tried = [f"key {key}" for key in re.findall(r"Offering public key: (.*?)(?: explicit| agent)*\n", log)]
    tried += re.findall(r"Next authentication method: ((?!publickey|none).*)", log)
    accepts = re.findall(r"Authentications that can continue: (.*)", log)
    parts = [f"port {port} does not let '{user}' in. Tried: {', '.join(tried) or 'nothing'}"]
    if "Too many authentication failures" in log:
        parts.append(f"It hung up after {len(tried)}: name the right key in 'key_file', and no other is offered")
    parts.append(f"It accepts: {accepts[-1] if accepts else 'it did not say'}")
    faults = dict(re.findall(r'Load key "(.*)": (.*)', log))
    signing = re.findall(r"Server accepts key: (.+) \S+ SHA256:(?=.*\n(?!Authenticated|debug1: Authentications))", log)
    if signing and faults.get(signing[-1]) != "bad permissions":
        parts.append(
            f"Not usable, although the server accepts it: key {signing[-1]}, which may be encrypted. Set its "
            f"passphrase in {PASSPHRASE}, or give the key to ssh-agent with ssh-add"
        )
    parts += [f"Not usable: key {key} ({fault})" for key, fault in faults.items()]
    password = f" or set {PASSWORD}" if accepts and re.search("password|keyboard", accepts[-1]) else ""
    parts.append(f"Write your public key into ~/.ssh/authorized_keys there, correct 'username' or 'key_file'{password}")
    return ". ".join(parts)
