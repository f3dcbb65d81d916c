"""What `strategy="auto"` chose in earlier programs, in files of the user's cache.

In: the builder, a captured step, the machines. Out: the strategy that was chosen for the same, and the times that were
measured for it. A file's name is a digest of all on which the choice rests: the variables and operations of the step,
the batch, this machine, the machines and the file with their measured links, the builder's options, and the versions.
They are in ``choices`` below ``AUTODIST_CACHE``, else ``~/.cache/autodist-keras``; an empty variable turns this off.
"""

import contextlib
import hashlib
import json
import os
import platform
from collections import Counter
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import tensorflow as tf

from autodist_core.auto import Auto, StepTimes
from autodist_core.auto.profiles import file_beside
from autodist_core.errors import AutodistError
from autodist_core.log import log
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import Strategy, StrategyBuilder

_MOST = 200
"""The most files that stay. They have a folder of their own, since older ones are deleted."""


def earlier(builder: StrategyBuilder, item: GraphItem, spec: ResourceSpec) -> tuple[Strategy, StepTimes | None] | None:
    """What was chosen for this step on these machines, and the times that were measured then.

    >>> from autodist_core.strategy import PS
    >>> earlier(PS(), GraphItem(()), ResourceSpec.local(cpus=2)) is None  # it does not choose
    True
    """
    file = _file(builder, item, spec)
    if file is None or not file.is_file():
        return None
    try:
        found = json.loads(file.read_text())
        strategy = Strategy.deserialize(bytes.fromhex(found["strategy"]))
        times = StepTimes(**found["times"]) if found["times"] else None
    except (OSError, ValueError, KeyError, TypeError, AutodistError) as error:
        log.warning("The choice in %s cannot be read (%s): it is made again.", file, error)
        return None
    return strategy.noted(f"auto: chosen by an earlier program; delete {file} to choose again"), times


def keep(
    builder: StrategyBuilder, item: GraphItem, spec: ResourceSpec, strategy: Strategy, tried: bool = False
) -> None:
    """Keep a choice for later programs, unless trials are still to come. Where it cannot be kept, each program chooses.

    >>> from autodist_core.strategy import PS
    >>> keep(PS(), GraphItem(()), ResourceSpec.local(cpus=2), Strategy())  # it does not choose
    """
    file, times = _file(builder, item, spec), item.found.get(StepTimes)
    if file is None or (isinstance(builder, Auto) and builder.trials and not tried):
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"strategy": strategy.serialize().hex(), "times": asdict(times) if times else None})
        made = file.with_suffix(f".{os.getpid()}")
        made.write_text(text)
        made.replace(file)
        for old in sorted(file.parent.iterdir(), key=os.path.getmtime)[:-_MOST]:
            old.unlink()
    except OSError as error:
        log.debug("The choice is not kept in %s: %s", file, error)


def _file(builder: StrategyBuilder, item: GraphItem, spec: ResourceSpec) -> Path | None:
    folder = os.environ.get("AUTODIST_CACHE", "~/.cache/autodist-keras")
    if not folder or type(builder) is not Auto or not item.gradients:
        return None
    links, version = b"", ""
    with contextlib.suppress(OSError):
        links = file_beside(spec.source).read_bytes()
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("autodist-keras")
    # The names of nodes say how many models a program has made before.
    operations = sorted(Counter(node.op for node in item.graph_def.node).items())
    variables = [(each.name, each.shape, each.dtype, each.kind) for each in item.variables]
    inputs = [(each.shape, each.dtype) for each in item.inputs]
    rests_on = (
        version, tf.__version__, builder, variables, operations, inputs, item.usual_examples, spec.nodes, links,
        platform.node(), os.cpu_count(),
    )
    return Path(folder).expanduser() / "choices" / f"{hashlib.sha256(repr(rests_on).encode()).hexdigest()[:32]}.json"
