"""The command `autodist`, also as `python -m autodist_core`.

In: the words of the command line. Out: printed text and an exit status. Each command is a module with the functions
`add_arguments(parser)` and `run(options) -> exit status`. This package imports only the module of the command that is
called, so that `autodist doctor` starts in a second. The command `plan` needs Keras: its module is in `autodist_keras`,
and this package knows only the module's name.

In reading order: ``doctor`` and ``agent``, two of the commands.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata

from autodist_core.errors import AutodistError

COMMANDS = {
    "doctor": ("autodist_core.command_line.doctor", "check all nodes of a cluster, and the links between them"),
    "plan": ("autodist_keras.command_line", "print what a strategy does with each variable of a saved model"),
    "agent": ("autodist_core.command_line.agent", "wait for the chief, on a node where a scheduler starts it"),
}
"""The module of each command, and its line of help."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 1 after an error, 2 after wrong usage, 130 after Ctrl-C.

    >>> main(["agent", "--port", "0"])
    Traceback (most recent call last):
    SystemExit: 2
    """
    words = sys.argv[1:] if words is None else words
    chosen = next((word for word in words if not word.startswith("-")), "")
    try:
        options = _parser(chosen).parse_args(words)
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except AutodistError as error:
        print(f"autodist {chosen}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"autodist {chosen}: it needs {error.name}, which is not installed here.", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended. Python flushes at its end and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"autodist {chosen}: interrupted", file=sys.stderr)
        return 130


def version() -> str:
    """The installed version, as `autodist --version` prints it.

    >>> version().startswith("autodist-keras ")
    True
    """
    try:
        return f"autodist-keras {metadata.version('autodist-keras')}"
    except metadata.PackageNotFoundError:
        return "autodist-keras (not installed, used from a checkout)"


def seconds(word: str) -> float:
    """A number of seconds above 0.

    >>> seconds("0.5")
    0.5
    >>> seconds("soon")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: expected a number of seconds above 0, received 'soon'
    """
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, received {word!r}")
    return number


def port(word: str) -> int:
    """The number of a port, from 1 to 65535.

    >>> port("8888")
    8888
    """
    if not (word.isdecimal() and 0 < int(word) < 65536):
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535, received {word!r}")
    return int(word)


def _parser(chosen: str) -> argparse.ArgumentParser:
    """The parser of all commands, with the options of the chosen command only."""
    parser = argparse.ArgumentParser(
        prog="autodist", description="Train a Keras model on several devices and machines.",
        epilog="'autodist COMMAND --help' tells about one command.",
    )
    parser.add_argument("--version", action="version", version=version())
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=f"{line[:1].upper()}{line[1:]}.")
        if name == chosen:
            found = import_module(module)
            found.add_arguments(command)
            command.set_defaults(run=found.run)
    return parser
