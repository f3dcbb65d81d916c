"""The options of the commands: the help of a command is its docstring, and each option says its default."""

import argparse
from typing import Any

RATE = "what each cable carries each way, as 250mbit or 1gbit"
JSON = "print the times of all rounds as JSON instead of a table"


def command(text: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows the docstring of a command, line by line."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def option(
    parser: argparse.ArgumentParser, name: str, text: str, default: Any = False, said: str = "", **settings: Any
) -> None:
    """Add an option whose help ends with its default, or with what is `said` of it. With False, it takes no value.

    >>> parser = command("Measure.")
    >>> option(parser, "--models", "some of the models", ["mlp", "cnn"], nargs="+", metavar="NAME")
    >>> option(parser, "--check", "exit with 1 if a target is missed")
    >>> [line.strip() for line in parser.format_help().splitlines() if "default" in line]
    ['some of the models (default: mlp cnn)', '--check               exit with 1 if a target is missed (default: off)']
    >>> parser.parse_args(["--check"])
    Namespace(models=['mlp', 'cnn'], check=True)
    """
    if default is False:
        settings["action"], said = "store_true", said or "off"
    elif isinstance(default, list | tuple):
        said = said or " ".join(map(str, default))
    parser.add_argument(name, default=default, help=f"{text} (default: {said or default})", **settings)
