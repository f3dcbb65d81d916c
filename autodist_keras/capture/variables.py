"""The variables of a Keras model by name: what each is called, what it is for, and where Keras keeps its value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.step.graph_item import Variable
from autodist_keras.seams import ADDED_UP


@dataclass(frozen=True)
class Entry:
    """One variable: its name and properties, and the object that holds its value between trainings."""

    spec: Variable
    owner: Any

    @property
    def tf_variable(self) -> Any:
        """The TensorFlow variable below a Keras one."""
        return _below(self.owner)


class ModelVariables:
    """All variables of a model, its optimizers and its metrics, and whatever else a trace captured.

    A name is the Keras path without the root model's name; the optimizer's begin with `optimizer/`, those of metrics
    with `metric/`. Of equal names, the second and later ones get `_1`, `_2` ... in the order of `model.variables`.
    """

    def __init__(self, model: Any, optimizers: Sequence[Any] = (), captured: Iterable[Any] = ()) -> None:
        self._names: dict[int, str] = {}
        entries: list[Entry] = []
        taken: set[str] = set()
        for metric in model.metrics:
            _require_added_up(metric)
        metrics = {id(v): v for metric in model.metrics for v in metric.variables}
        metrics |= {id(v): v for v in model.metrics_variables}
        groups = [
            ("", [v for v in model.variables if id(v) not in metrics]),
            ("optimizer/", [v for optimizer in optimizers for v in optimizer.variables]),
            ("metric/", list(metrics.values())),
        ]
        for prefix, variables in groups:
            for variable in variables:
                if id(_below(variable)) not in self._names:
                    name = _free(prefix + _path(model, variable), taken)
                    self._names[id(_below(variable))] = name
                    entries.append(Entry(_spec(name, variable, _KINDS[prefix]), variable))
        for variable in captured:
            if id(variable) not in self._names:
                name = _free("captured/" + variable.name.partition(":")[0], taken)
                self._names[id(variable)] = name
                entries.append(Entry(_spec(name, variable, "model"), variable))
        self.entries = tuple(entries)

    def name_of(self, variable: Any) -> str:
        """The name of a Keras or TensorFlow variable."""
        try:
            return self._names[id(_below(variable))]
        except KeyError:
            raise CaptureError(
                f"an optimizer is given variable {_title(variable)!r}, which is not a variable "
                "of the model. Make it an attribute of the model or of one of its layers."
            ) from None


_KINDS = {"": "model", "optimizer/": "optimizer", "metric/": "metric"}


def _below(variable: Any) -> Any:
    return vars(variable)["_value"] if isinstance(variable, keras.Variable) else variable


def _path(model: Any, variable: Any) -> str:
    path: str = variable.path if isinstance(variable, keras.Variable) else variable.name.partition(":")[0]
    return path.removeprefix(f"{model.name}/")


def _title(variable: Any) -> str:
    title: str = variable.path if isinstance(variable, keras.Variable) else variable.name
    return title


def _free(name: str, taken: set[str]) -> str:
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate


def _require_added_up(metric: Any) -> None:
    """Raise a SeamError if Keras's own sum or mean does not ask for its variables to be added up over replicas."""
    own = [metric.total] if type(metric) is keras.metrics.Sum else []
    own += [metric.total, metric.count] if type(metric) is keras.metrics.Mean else []
    for variable in own:
        if variable.aggregation != "sum":
            raise ADDED_UP.error(f"{variable.path!r} has aggregation {variable.aggregation!r}")


def _spec(name: str, variable: Any, kind: str) -> Variable:
    below = _below(variable)
    if below is None or not below.shape.is_fully_defined():
        raise CaptureError(f"variable {name!r} has no fixed shape yet; build the model, or pass data.")
    # The states of keras.random.SeedGenerator and of tf.random.Generator.
    if name.rpartition("/")[2].startswith(("seed_generator_state", "StateVar")):
        kind = "seed"
    aggregation = variable.aggregation
    if not isinstance(aggregation, str):
        aggregation = aggregation.name.lower()
    return Variable(
        name, tuple(below.shape.as_list()), below.dtype.base_dtype.name, trainable=False,
        aggregation=aggregation or "none", kind=kind,
    )


def is_sparse_layer_variable(model: Any, variable: Any) -> bool:
    """Whether a variable is the table of an Embedding layer, whose gradient arrives as rows."""
    return any(
        isinstance(layer, keras.layers.Embedding) and layer.built and variable is layer.embeddings
        for layer in model._flatten_layers()
    )


def tf_dtype(spec: Variable) -> tf.DType:
    """The TensorFlow type of a variable."""
    return tf.as_dtype(spec.dtype)
