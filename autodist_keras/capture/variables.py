"""The variables of a Keras model, by name.

In: a model, its optimizers, and the variables that a trace captured. Out: an `Entry` for each variable, with its name,
its properties (a `Variable` of the captured step) and the TensorFlow variable that has its value. The capture, the plan
and the training's `TrainingState` use the entries.

>>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")], name="small")
>>> [entry.spec.name for entry in ModelVariables(model, [keras.optimizers.SGD(name="sgd")]).entries]
['dense/kernel', 'dense/bias', 'optimizer/sgd/iteration', 'optimizer/sgd/learning_rate']
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from autodist_core.capture import unused, variable_of
from autodist_core.errors import CaptureError
from autodist_core.step.graph_item import Variable
from autodist_core.training import Entry
from autodist_keras.seams import ADDED_UP


class ModelVariables:
    """All variables of a model, its optimizers and its metrics, and the other variables that a trace captured.

    The module's docstring has an example.

    A name is the Keras path without the root model's name; the optimizer's begin with `optimizer/`, those of metrics
    with `metric/`. Of equal names, the second and later ones get `_1`, `_2` ... in the order of `model.variables`.
    """

    def __init__(self, model: Any, optimizers: Sequence[Any] = (), captured: Iterable[Any] = ()) -> None:
        self._names: dict[int, str] = {}
        entries: list[Entry] = []
        used: set[str] = set()
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
                if id(tf_variable_of(variable)) not in self._names:
                    name = unused(prefix + _path(model, variable), used)
                    self._names[id(tf_variable_of(variable))] = name
                    entries.append(Entry(_spec(name, variable, _KINDS[prefix]), tf_variable_of(variable)))
        for variable in captured:
            if id(variable) not in self._names:
                name = unused("captured/" + variable.name.partition(":")[0], used)
                self._names[id(variable)] = name
                entries.append(Entry(_spec(name, variable, "model"), variable))
        self.entries = tuple(entries)

    def name_of(self, variable: Any) -> str:
        """The name of a Keras or TensorFlow variable. A CaptureError says if it is none of the model's variables."""
        try:
            return self._names[id(tf_variable_of(variable))]
        except KeyError:
            raise CaptureError(
                f"an optimizer is given variable {_title(variable)!r}, which is not a variable "
                "of the model. Make it an attribute of the model or of one of its layers."
            ) from None


_KINDS = {"": "model", "optimizer/": "optimizer", "metric/": "metric"}


def tf_variable_of(variable: Any) -> Any:
    """The TensorFlow variable of a Keras variable, taken without a look; a TensorFlow variable is its own.

    >>> type(tf_variable_of(keras.Variable([1.0]))).__name__
    'ResourceVariable'
    """
    return vars(variable)["_value"] if isinstance(variable, keras.Variable) else variable


def _path(model: Any, variable: Any) -> str:
    # A TFSMLayer passes TensorFlow's names on, with the number of the tensor behind them.
    return _title(variable).removesuffix(":0").removeprefix(f"{model.name}/")


def _title(variable: Any) -> str:
    title: str = variable.path if isinstance(variable, keras.Variable) else variable.name
    return title


def _require_added_up(metric: Any) -> None:
    """Raise a SeamError if the variables of Keras's own Sum or Mean do not declare that replicas add them up."""
    own = [metric.total] if type(metric) is keras.metrics.Sum else []
    own += [metric.total, metric.count] if type(metric) is keras.metrics.Mean else []
    for variable in own:
        if variable.aggregation != "sum":
            raise ADDED_UP.error(f"{variable.path!r} has aggregation {variable.aggregation!r}")


def _spec(name: str, variable: Any, kind: str) -> Variable:
    tf_variable = tf_variable_of(variable)
    if tf_variable is None or not tf_variable.shape.is_fully_defined():
        raise CaptureError(f"variable {name!r} has no fixed shape yet; build the model, or pass data.")
    aggregation = variable.aggregation
    if not isinstance(aggregation, str):
        aggregation = aggregation.name.lower()
    return variable_of(name, tf_variable, kind, aggregation or "none")


def is_sparse_layer_variable(model: Any, variable: Any) -> bool:
    """Whether a variable is the table of an Embedding layer. Such a table has a sparse gradient.

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(5, 3), keras.layers.Dense(1)])
    >>> [is_sparse_layer_variable(model, variable) for variable in model.variables]
    [True, False, False]
    """
    return any(
        isinstance(layer, keras.layers.Embedding) and layer.built and variable is layer.embeddings
        for layer in model._flatten_layers()
    )
