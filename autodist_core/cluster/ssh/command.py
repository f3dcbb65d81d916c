"""What ``ssh`` is started with: options, environment, and the command line for the other machine.

In: a host and the ssh group of the ResourceSpec. Out: words and variables. The options that are not named here are as
ssh's own configuration says.
"""

import math
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from autodist_core.errors import LaunchError
from autodist_core.resource_spec import SSHGroup

PASSPHRASE, PASSWORD = "AUTODIST_SSH_PASSPHRASE", "AUTODIST_SSH_PASSWORD"
# What `ssh` starts to ask the user. A jump host's `ssh` inherits it, and the password is for the node alone: only the
# `ssh` whose command line names this directory gets it.
_ASKPASS = f"""#!/bin/sh
case "$1" in
"Enter passphrase for "*) printf '%s\\n' "${PASSPHRASE}" ;;
*assword*)
    (tr '\\0' ' ' <"/proc/$PPID/cmdline" || ps -o args= -p "$PPID") 2>/dev/null | grep -qF "${{0%/*}}/" &&
        printf '%s\\n' "${PASSWORD}" ;;
*) exit 1 ;;
esac
"""


def login(group: SSHGroup) -> list[str]:
    """The options that say how to log in.

    >>> login(SSHGroup(username="ada", port=2222))
    ['-p', '2222', '-l', 'ada']
    """
    options = ["-p", str(group.port)] if group.port else []
    options += ["-l", group.username] if group.username else []
    if group.key_file:
        # ssh replaces %h and the like in it.
        key_file = os.path.expanduser(group.key_file).replace("%", "%%")
        options += ["-o", f'IdentityFile="{key_file}"', "-o", "IdentitiesOnly=yes"]
    return options


def settings(deadline_seconds: float, keepalive_seconds: float) -> list[str]:
    """The options of every login; ssh counts in whole seconds.

    >>> [option for option in settings(30, 10) if option.startswith(("Connect", "Server"))]
    ['ConnectTimeout=31', 'ServerAliveInterval=1', 'ServerAliveCountMax=30']
    """
    # A password that is given is used, also if ssh's configuration has none be used.
    password = "yes" if PASSWORD in os.environ else "no"
    chosen = {
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "BatchMode": "no" if is_asked() else "yes",
        "PasswordAuthentication": password,
        "KbdInteractiveAuthentication": password,
        "NumberOfPasswordPrompts": 1,
        # Whoever waits for the login ends `ssh` before. This is for an `ssh` of which nobody is left to wait.
        "ConnectTimeout": math.ceil(deadline_seconds) + 1,
        "ServerAliveInterval": 1,
        # So many seconds count for each answer during the login, too.
        "ServerAliveCountMax": math.ceil(max(deadline_seconds, 2 * keepalive_seconds - 1)),
        "ControlPersist": "no",
        "ClearAllForwardings": "yes",
        "RemoteCommand": "none",
        # A line on ssh's output as soon as the login has succeeded.
        "PermitLocalCommand": "yes",
        "LocalCommand": "echo",
        # What was tried, and how far it came.
        "LogLevel": "DEBUG1",
    }
    return ["-T", "-a", "-x", "-M", *(word for key, value in chosen.items() for word in ("-o", f"{key}={value}"))]


def is_asked() -> bool:
    """Whether the environment has something that ``ssh`` may ask for.

    >>> is_asked()
    False
    """
    return PASSWORD in os.environ or PASSPHRASE in os.environ


def environment(directory: Path) -> dict[str, str]:
    """The environment of ``ssh``, which asks a script in this directory for password and passphrase, and nobody else.

    >>> environment(Path("/nowhere"))["SSH_ASKPASS_REQUIRE"]
    'never'
    """
    # `ssh` starts its commands with this shell.
    env = {**os.environ, "SHELL": "/bin/sh", "SSH_ASKPASS_REQUIRE": "never"}
    if is_asked():
        script = directory / "askpass"
        script.write_text(_ASKPASS)
        script.chmod(0o700)
        # OpenSSH before 8.4 asks it if there is a display and no terminal.
        env |= {"SSH_ASKPASS": str(script), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": env.get("DISPLAY", ":0")}
    return env


def command_line(python_venv: str, command: str, size: int) -> str:
    """The command line for the login shell, for a program whose input begins with `size` bytes of variables.

    >>> print(command_line("source ~/venv/bin/activate", "python -m this", 0))
    source ~/venv/bin/activate && exec python -m this
    >>> print(command_line("", "python -m this", 20))
    exec /bin/sh -c 'given="$(dd bs=1 count=20 2>/dev/null)" && eval "$given" && exec python -m this'
    """
    if size:
        # The variables come over the program's input: a server drops most variables that ssh itself sends, and every
        # user of the host can see a command line. `dd` reads no byte more than them, and every host has `sh`.
        script = f'given="$(dd bs=1 count={size} 2>/dev/null)" && eval "$given" && exec {command}'
        command = f"/bin/sh -c {shlex.quote(script)}"
    # A block of YAML ends with a new line.
    python_venv = python_venv.rstrip("; \n")
    return f"{python_venv} && exec {command}" if python_venv else f"exec {command}"


def assignments(host: str, variables: Mapping[str, str]) -> bytes:
    """Environment variables as lines that a shell evaluates.

    >>> print(assignments("10.0.0.2", {"A": "1", "B": "two words"}).decode(), end="")
    export A=1
    export B='two words'
    """
    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise LaunchError(
                host,
                f"{name!r} cannot be set there: the name of an environment variable has letters, digits and '_', does "
                "not begin with a digit, and its value has no NUL. Correct 'shared_envs'.",
            )
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return "".join(lines).encode(errors="surrogateescape")
