"""The comparison of all strategies for a step, as a table: what `autodist plan --compare` prints.

In: a captured step, the machines, and the number of examples of a batch. Out: text, with the fastest strategy first.
"""

from autodist_core.auto.choosing import SHARDED, USUAL
from autodist_core.auto.prediction import PARTS
from autodist_core.auto.trial import assumptions, trial_of
from autodist_core.errors import amount
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem

_HEADS = "step", "compute", "wire", "update", "back"


def comparison(item: GraphItem, spec: ResourceSpec, examples: int) -> str:
    """The predicted milliseconds of a step of each strategy; of strategies that do the same, the first is named.

    >>> from autodist_core import Variable
    >>> spec = ResourceSpec({"nodes": [{"address": f"10.0.0.{n}", "chief": n == 1} for n in (1, 2)]})
    >>> item = GraphItem((Variable("kernel", (2000, 1000), "float32"),))
    >>> print(*comparison(item, spec, 64).splitlines()[:3], sep="\\n")
    predicted ms of a step of 64 examples on 2 replicas
                                         step  compute     wire   update     back  examples/s
    Parallax                             30.0     25.6      3.3      1.1      0.0        2134
    """
    trial = trial_of(item, spec, examples)
    head = f"predicted ms of a step of {amount(examples, 'example')} on {amount(len(spec.replica_devices), 'replica')}"
    lines = [head, " " * 32 + "".join(f"{name:>9}" for name in _HEADS) + "  examples/s"]
    for each in trial.compared((*USUAL, *SHARDED)):
        cells = (each.prediction.step, *map(each.prediction.part, PARTS))
        lines.append(
            f"{each.name:32}" + "".join(f"{1e3 * seconds:9.1f}" for seconds in cells)
            + f"{examples / cells[0]:12.0f}" + ("" if trial.fits(each) else "  does not fit into memory")
        )
    return "\n".join([*lines, *assumptions(trial)])
