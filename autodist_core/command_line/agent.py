"""`autodist agent`: a process that a scheduler starts on a node waits there for the chief and serves as an agent."""

import argparse
import logging
import os
import sys

from autodist_core.cluster.on_node.standby import LINGER_SECONDS, WAIT_SECONDS, stand_by
from autodist_core.command_line import port, seconds
from autodist_core.errors import LaunchError, ResourceSpecError
from autodist_core.log import log
from autodist_core.resource_spec import ResourceSpec, discovery


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser.

    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> options = parser.parse_args(["--port", "8888", "--wait", "60"])
    >>> options.port, options.wait, options.linger == LINGER_SECONDS
    (8888, 60.0, True)
    """
    parser.add_argument("--port", type=port, help="where to wait (default: the port of TF_CONFIG's own task)")
    parser.add_argument(
        "--wait", type=seconds, default=WAIT_SECONDS, metavar="SECONDS",
        help=f"how long the chief may take to come (default: {WAIT_SECONDS:g})",
    )
    parser.add_argument(
        "--linger", type=seconds, default=LINGER_SECONDS, metavar="SECONDS",
        help=f"how long to wait for another run after one has ended (default: {LINGER_SECONDS:g})",
    )


def run(options: argparse.Namespace) -> int:
    """Serve the chief's runs; return 0 when they are over, and 1 if no chief came or its connection broke."""
    logging.basicConfig(stream=sys.stderr, format="autodist agent: %(message)s", level=logging.INFO)
    port = options.port or own_port()
    if port is None:
        log.info("another task of this machine is its agent; this process has nothing to do.")
        return 0
    log.info("waiting at port %d for the chief.", port)
    try:
        return stand_by(port, options.wait, options.linger)
    except OSError as error:
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(
            "", f"port {port} of this machine cannot be used ({error}): another agent or program listens there, or the "
            "port is below 1024. End that program, or name another port in TF_CONFIG or by --port"
        ) from None


def own_port() -> int | None:
    """The port that TF_CONFIG has for its own task; None if another task of this machine is the machine's agent.

    >>> os.environ["TF_CONFIG"] = (
    ...     '{"cluster": {"worker": ["10.0.0.1:8888", "10.0.0.2:8889"]}, "task": {"type": "worker", "index": 1}}'
    ... )
    >>> own_port()
    8889
    >>> del os.environ["TF_CONFIG"]
    """
    if not os.environ.get("TF_CONFIG"):
        raise ResourceSpecError(
            "TF_CONFIG is not set, so the port to wait at is not known. Let the scheduler set it, or give --port."
        )
    cluster, own = discovery.tf_config_content(None)
    tasks = discovery.cluster_tasks(cluster, "TF_CONFIG")
    task = next((task for task in tasks if (task.job, task.index) == own), None)
    if task is None:
        known = ", ".join(f"{task.job} {task.index}" for task in tasks)
        received = f"{own[0]} {own[1]}" if own else "no 'task' with 'type' and 'index'"
        raise ResourceSpecError(
            f"TF_CONFIG: 'task' must say which task this is, one of: {known}. Received: {received}. Correct what sets "
            "it, or give --port."
        )
    if task.host == tasks[0].host:
        raise ResourceSpecError(
            f"TF_CONFIG: {task.job} {task.index} is on the chief's machine, {task.host}, and agents wait on the others "
            "only. Start your program there."
        )
    if task.port is None:
        raise ResourceSpecError(
            f"TF_CONFIG: {task.job} {task.index} has no port in '{task.host}'. Write 'host:port', or give --port."
        )
    return ResourceSpec.from_tf_config(gpus=0).own_port
