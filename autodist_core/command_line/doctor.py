"""`autodist doctor`: examine all nodes and links of a cluster, and print whether a run could start."""

import argparse
import json
import sys

from autodist_core.auto.profiles import file_beside
from autodist_core.cluster.doctor.diagnosis import diagnose
from autodist_core.cluster.doctor.report_text import as_data, as_text
from autodist_core.command_line import seconds
from autodist_core.resource_spec import ResourceSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser.

    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> parser.parse_args(["cluster.yml"]).file
    'cluster.yml'
    """
    parser.add_argument("file", metavar="cluster.yml", help="the file that describes the nodes")
    parser.add_argument(
        "--seconds", type=seconds, default=1.0, help="the time for which each bandwidth is measured (default: 1)"
    )
    parser.add_argument(
        "--profile", action="store_true", help='write what is measured beside the file, for strategy="auto"'
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the report; return 0 if all nodes are ready, else 1. A profile is written if they are."""
    def say(line: str) -> None:
        # One write: several threads say something.
        sys.stderr.write(f"autodist doctor: {line}\n")

    report = diagnose(ResourceSpec(options.file), options.seconds, say)
    print(json.dumps(as_data(report), indent=2) if options.json else as_text(report))
    if options.profile and not report.problems:
        beside = file_beside(options.file)
        beside.write_text(json.dumps(as_data(report), indent=2))
        say(f'strategy="auto" uses {beside} from now on')
    return 1 if report.problems else 0
