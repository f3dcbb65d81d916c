"""What has an example, which the doctests run.

Every function, class and method that the API reference shows has one. A method has one in its own docstring, or is
called in the example of its class. Every public function and class of the packages has one, in its own docstring, its
module's or that of one of its methods, except those of which `WITHOUT` says why they have none.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.network.lan import ROOT

PAGE = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.MULTILINE)


def _found(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


def _examples(of: Any) -> str:
    return "\n".join(re.findall(r"^\s*(?:>>>|\.\.\.) (.*)$", inspect.getdoc(of) or "", re.MULTILINE))


def _shown() -> Iterator[tuple[str, str, str]]:
    """The name of everything on the page, its examples, and those of its class."""
    for dotted in PAGE:
        found = _found(dotted)
        names = [(dotted, found)]
        if inspect.ismodule(found):
            names = [(f"{dotted}.{name}", getattr(found, name)) for name in found.__all__]
        for path, one in names:
            if inspect.isclass(one) or inspect.isfunction(one):
                yield path, _examples(one), ""
            for name, member in vars(one).items() if inspect.isclass(one) else ():
                member = getattr(member, "__func__", member)
                if not inspect.isfunction(member) or (inspect.getdoc(member) or "").startswith("Refused: "):
                    continue
                # Keras calls the methods `on_...` of a callback.
                if not name.startswith(("_", "on_")):
                    yield f"{path}.{name}", _examples(member), _examples(one)


SHOWN = {path: (own, around) for path, own, around in _shown()}


@pytest.mark.parametrize("path", SHOWN)
def test_it_has_an_example(path: str):
    own, around = SHOWN[path]
    assert own or f".{path.rpartition('.')[2]}(" in around, f"{path} has no example"


_OVER_SSH = "it needs an ssh server on another machine"
_SERVERS = "it starts TensorFlow servers, which takes seconds"
WITHOUT = {
    "discovery.local_gpus": "its result is that of the machine",
    "ray_agents.RayAgent": "it runs in a worker of Ray",
    "agent_over_ssh.AgentOverSSH": _OVER_SSH,
    "connection.Connection": _OVER_SSH,
    "scheduled_agent.ScheduledAgent": "it needs an agent that a scheduler has started",
    "cluster.Cluster": _SERVERS,
    "fleet.Fleet": _SERVERS,
    "launch.start_servers": _SERVERS,
    "server.start_server": "TensorFlow cannot stop a server within a process",
    "light_tensorflow.import_tensorflow_server": "it puts an empty package in the place of TensorFlow",
    "agent.main": "it takes over the streams of its process, and does not return",
    "agent.run": "it waits for a chief",
    "standby.stand_by": "it waits for a chief",
    "doctor.run": "it starts agents, and its report has the times of the machine",
    "interruptible.BrokenOffError": "the example of `RecoveringSession` raises it",
    "kept_arrays.KeptRows": "the example of the module makes some",
    "kept_arrays.KeptSlot": "the example of `KeptData` makes one",
    "kept_data.KeptIterator": "the example of `RowsOfArrays` makes one",
    "on_machines.PipelineSlot": _SERVERS,
    "on_machines.PipelinesOnMachines": _SERVERS,
    "sent_arrays.Place": "the example of the module makes one",
    "travelling_data.PipelineIterator": "the example of `PipelineBatches` makes one",
    "folding.levels": "the example of `repeated` calls it",
    "folding.filled": "the example of `repeated` calls it",
    "recomputed.Recomputed": "the example of `find_recomputed` makes one",
    "side_state.Addition": "the example of `additions` makes one",
    "deciding.Decided": "the example of `decided_for_whole_batch` makes one",
    "updates.Updates": "the example of `Search` makes one",
    "run.OnEachReplica": "the example of `ReplicaStrategy` makes one",
    "traced_function.TracedFunction": "it is abstract: `Function` and `OnEachReplica` are its classes",
    "resumable_fit.ResumableFit": "the example of `Resume` runs one",
    "explain.explain": "the example of `DistributedModel.explain` calls it",
    "model_plan.inexact": "the example of `DistributedModel.inexact` calls it",
    "verify.verify": "the example of `DistributedModel.verify` calls it",
}
"""The public names without an example, each with its module, and why."""


_NAMED = ast.FunctionDef | ast.ClassDef


def _without_example() -> Iterator[str]:
    """Each public name of the packages that has no example, with its module."""
    paths = (path for package in ("autodist_core", "autodist_keras") for path in sorted((ROOT / package).rglob("*.py")))
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        around = ast.get_docstring(tree) or ""
        # The modules `..._pb2` are generated.
        for node in () if path.stem.endswith("_pb2") else tree.body:
            if isinstance(node, _NAMED) and not node.name.startswith("_"):
                parts = ast.walk(node) if isinstance(node, ast.ClassDef) else [node]
                own = any(">>>" in (ast.get_docstring(each) or "") for each in parts if isinstance(each, _NAMED))
                if not own and not re.search(rf"^(?:>>>|\.\.\.) .*\b{node.name}\b", around, re.MULTILINE):
                    yield f"{path.stem}.{node.name}"


def test_every_public_function_and_class_has_an_example():
    assert set(_without_example()) == WITHOUT.keys()
