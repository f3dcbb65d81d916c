"""The trial of a captured step: with what its graph says, and what was measured of the machines.

In: a step, a ResourceSpec, and the number of examples of a batch. Out: a `Trial`, and the lines on what it assumes.
"""

from collections.abc import Iterator
from operator import attrgetter

from autodist_core.auto.choosing import Trial
from autodist_core.auto.profiles import GPU_FLOPS, StepTimes
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import AllReduce
from autodist_core.strategy.factor_rows import FLOPS


def trial_of(item: GraphItem, spec: ResourceSpec, examples: int) -> Trial:
    """The trial for a step. What is known of a captured step needs TensorFlow, which has traced it.

    >>> from autodist_core import Variable
    >>> item, spec = GraphItem((Variable("kernel", (600, 400), "float32"),)), ResourceSpec.local(cpus=2)
    >>> round(trial_of(item, spec, 64).compute["localhost"], 4)
    0.0046
    """
    if not item.gradients or not item.graph_bytes:
        return Trial.of(item, spec, examples)
    from autodist_core.auto.of_step import profile_of
    from autodist_core.forecast.needs import available
    from autodist_core.kernel import arrange

    here, held = spec.chief.address, sum(each.byte_size for each in item.variables)
    trial = Trial.of(
        item, spec, examples, profile_of(item, spec, examples),
        carried_out=lambda strategy: attrgetter("strategy", "memories")(arrange(item, strategy)),
        available=lambda name: available(name, here, held),
    )
    measured: StepTimes | None = item.found.get(StepTimes)
    if measured is None:
        return trial
    updated = sum(each.update for each in trial.candidate("", AllReduce().build(item, spec)).charges)
    rate = trial.charging.model.operations * measured.examples / measured.compute
    on_gpus = spec.replica_devices[0][1].kind == "GPU"
    return trial.on(trial.charging.cluster.timed(rate, measured.update / max(updated, 1), on_gpus))


def assumptions(trial: Trial) -> Iterator[str]:
    """What was not measured.

    >>> from autodist_core import Variable
    >>> item, spec = GraphItem((Variable("kernel", (6, 4), "float32"),)), ResourceSpec.local(cpus=2)
    >>> print(*assumptions(trial_of(item, spec, 64)))
    auto: measured: nothing; taken: layers as their variables are, 20 Gflop/s for a machine, network_bandwidth of ...
    """
    model, cluster = trial.charging.model, trial.charging.cluster
    counted = "operations counted" if model.seen else "layers as their variables are"
    kinds = {each.on_gpus: each for each in cluster.machines}
    assumed = {True: f"{GPU_FLOPS / 1e12:.0f} Tflop/s for a GPU", False: f"{FLOPS / 1e9:.0f} Gflop/s for a machine"}
    rates = [assumed[kind] for kind in (True, False) if kind in kinds and kinds[kind].rate is None]
    links = f"links as in {cluster.links_from}" if cluster.links_from else "network_bandwidth of the file"
    measured = ["a step of one replica"] * any(each.rate is not None for each in cluster.machines)
    measured += ["links"] * bool(cluster.links_from)
    yield f"auto: measured: {' and '.join(measured) or 'nothing'}; taken: {', '.join([counted, *rates, links])}"
