"""The seams into TensorFlow and Python. `autodist_keras.seams` has those into Keras.

Code that uses one of these names imports the seam and calls `get()`, which imports the part of TensorFlow then:

>>> from autodist_core.seams.table import OP_DEF
>>> OP_DEF.get()("Neg").name
'Neg'
"""

from __future__ import annotations

from functools import cache

from autodist_core.errors import SeamError
from autodist_core.seams.seam import AT_USE, BEHAVIOUR, STORED, Seam, mention_versions, problems


@cache
def check() -> None:
    """Raise a SeamError that lists what is missing of TensorFlow; once it has passed, it costs nothing.

    >>> check()
    """
    if found := problems(TABLE):
        raise SeamError(*found)
    mention_versions("tensorflow")


def _draws_have_seeds() -> str:
    definition = OP_DEF.get()("RandomUniform")
    attributes = {attribute.name for attribute in definition.attr} if definition is not None else set()
    if "seed2" in attributes and definition.is_stateful:
        return ""
    return "RandomUniform is not a stateful operation with an attribute seed2"


_DATASET = "tensorflow.data.Dataset"
_FUNC_GRAPH = "tensorflow.python.framework.func_graph.FuncGraph"
_USERS_LINE = "naming the user's line in an error"
_GRAPH_LOST = "no step could be captured"

OP_DEF = Seam(
    "tensorflow.python.framework.op_def_registry", "get", "the ordering of stateful operations",
    "operations with effects could run twice, or not in their order",
)
KERNELS = Seam(
    "tensorflow.python.framework.kernels", "get_registered_kernels_for_op", "compiling with XLA",
    "it would not be known which operations XLA can compile",
)
ONEDNN = Seam(
    "tensorflow.python.util._pywrap_util_port", "IsMklEnabled", "telling whether TensorFlow uses oneDNN",
    "a graph that oneDNN changed would fail on machines that do not use it",
)
FUNCTION_TO_GRAPH = Seam(
    "tensorflow.python.framework.function_def_to_graph", "function_def_to_graph_def",
    "taking conditionals of the update apart",
    "gradient accumulation, loss scaling and overwritten averages could not be distributed",
)
FUNCTION_OF_GRAPH = Seam(
    "tensorflow.Graph", "_get_function", "following gradients into nested functions",
    "gradients that a tf.function or a conditional changes would not be recognised",
)
LEGACY_FUNCTION = Seam(
    "tensorflow.python.framework.function", "_DefinedFunction", "telling functions without a traced graph from others",
    "steps with TensorFlow's CTC loss could not be captured",
)
CONTROL_FLOW_GRAPH = Seam(
    "tensorflow.python.ops.control_flow_v2_func_graphs", "ControlFlowFuncGraph",
    "telling a conditional from a nested tf.function while losses are corrected",
    "metrics that are updated in a conditional would be refused",
)
FUNC_GRAPH = Seam(
    "tensorflow.python.framework.func_graph", "FuncGraph", "telling the graph of a function from that of a process",
    "gradients in a nested tf.function would not be refused, and variables that a loop reads would have old values",
)
GRADIENT_REGISTRY = Seam(
    "tensorflow.python.framework.ops", "gradient_registry", "releasing the graphs of traced steps",
    "every capture would keep its graph, and the model's variables, for ever",
)
GRADIENT_TAPE = Seam(
    "tensorflow.python.eager.imperative_grad", "imperative_grad", "recognising gradients",
    "gradients that a step clips by hand would be clipped on each replica: wrong numbers",
)
GRADIENTS_HELPER = Seam(
    "tensorflow.python.ops.gradients_util", "_GradientsHelper", "recognising gradients",
    "gradients that tf.gradients computes would be taken for a part of the model: wrong numbers",
)
CUSTOM_GRADIENT = Seam(
    "tensorflow.python.ops.custom_gradient", "_graph_mode_decorator", "recognising custom gradients",
    "a custom gradient that mixes the examples of a batch would not be named in the plan",
)
VARIABLE_HANDLE = Seam(
    "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", "handle", "finding the variables of a function",
    "a function could not say which variables it touches",
)
PER_REPLICA = Seam(
    "tensorflow.python.distribute.values", "PerReplica", "values of each replica",
    "loops with tf.distribute's methods could not be run",
)
PER_REPLICA_SPEC = Seam(
    "tensorflow.python.distribute.values", "PerReplicaSpec", "the element_spec of distributed datasets",
    "a tf.function with an input_signature could not take elements of a distributed dataset",
)
_TAPES = "tensorflow.python.pywrap_tfe"
RESTART_TAPES = Seam(
    _TAPES, "TFE_Py_TapeSetRestartOnThread", "tracing a function that another traced function runs",
    "the function would have no gradients",
)
STOP_TAPES = Seam(
    _TAPES, "TFE_Py_TapeSetStopOnThread", "tracing a function that another traced function runs",
    "a tape around the traced function would record what is no part of it",
)
TAPE_RECORDS = Seam(
    "tensorflow.python.eager.record", "could_possibly_record", "refusing a gradient of a marked function",
    "a tape around a marked function would give no gradient, without an error",
)
CALLABLE = Seam(
    "tensorflow.compat.v1.Session", "_make_callable_from_options", "running a step in a session",
    "no step could run", parameters=("self", "callable_options"),
)
EAGER_CONTEXT = Seam(
    "tensorflow.python.eager.context", "context", "giving TensorFlow the functions of a step",
    "steps that XLA compiles could not run",
)
XSPACE = Seam(
    "tensorflow.tsl.profiler.protobuf.xplane_pb2", "XSpace", "measuring the operations of a step",
    "explain and Timeline could not say where the time of a step goes",
)
_LOOKS = "seeing looks at variables"
_OLD = "whoever looks at a variable during a training would see an old value"
CALL_FUNCTION = Seam(
    "tensorflow.python.eager.context.Context", "call_function", _LOOKS, _OLD,
    parameters=("self", "name", "tensor_inputs", "num_outputs"),
    callers=("tensorflow.python.eager.polymorphic_function.atomic_function.AtomicFunction.call_flat",),
)
CREATE_ITERATOR = Seam(
    "tensorflow.python.data.ops.iterator_ops.OwnedIterator", "_create_iterator", _LOOKS,
    "a data pipeline would read old values of variables", parameters=("self", "dataset"), callers=("__init__",),
)
_SERVERS = "tensorflow.python.training.server_lib"
SERVER = Seam(_SERVERS, "Server", "TensorFlow's server on each node", "no node could start")
CLUSTER_SPEC = Seam(_SERVERS, "ClusterSpec", "TensorFlow's server on each node", "no node could start")
TAPE_IS_SEEN = Seam(
    "tensorflow", "what a tape makes remembers the function that computed it", "recognising gradients",
    "gradients that a step clips by hand would be clipped on each replica: wrong numbers", AT_USE,
)
GRAPH_IS_FOUND = Seam(
    "tensorflow", "the graph of a nested function is found by its name", "following gradients into nested functions",
    "gradients that a tf.function changes would not be recognised: wrong numbers", AT_USE,
)
HANDLE_IS_READ = Seam(
    "tensorflow", "an operation on a variable asks for its handle, or for its _handle", _LOOKS, _OLD, AT_USE,
)
CUSTOM_GRADIENT_IS_NAMED = Seam(
    "tensorflow", "a custom gradient is an IdentityN that names it in _gradient_op_type",
    "releasing the graphs of traced steps", "every capture would keep its graph for ever", AT_USE,
)
SEED_GENERATOR = Seam(
    "tensorflow", "the state of an iterator of a shuffle has the numbers that its generator of seeds has drawn",
    "the order of a dataset after a failure", "later epochs would have another order: wrong numbers", AT_USE,
)

TABLE: tuple[Seam, ...] = (
    OP_DEF, KERNELS, ONEDNN, FUNCTION_TO_GRAPH, FUNCTION_OF_GRAPH, LEGACY_FUNCTION, CONTROL_FLOW_GRAPH,
    FUNC_GRAPH, GRADIENT_REGISTRY, EAGER_CONTEXT, XSPACE,
    GRADIENT_TAPE, GRADIENTS_HELPER, CUSTOM_GRADIENT, VARIABLE_HANDLE, PER_REPLICA, PER_REPLICA_SPEC,
    RESTART_TAPES, STOP_TAPES, TAPE_RECORDS, CALLABLE, SERVER, CLUSTER_SPEC, CALL_FUNCTION, CREATE_ITERATOR,
    Seam(
        "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", "_handle", _LOOKS, _OLD, STORED,
        callers=("handle",),
    ),
    Seam(_DATASET, "_inputs", _LOOKS, "a data pipeline would read old values of variables"),
    Seam(_DATASET, "_functions", _LOOKS, "a data pipeline would read old values of variables"),
    Seam(
        "tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper", "function", _LOOKS,
        "a data pipeline would read old values of variables",
    ),
    Seam(
        "tensorflow.python.framework.registry.Registry", "_registry", "releasing the graphs of traced steps",
        "every capture would keep its graph, and the model's variables, for ever", STORED,
    ),
    Seam(_FUNC_GRAPH, "captures", "finding the variables and tables of a step", _GRAPH_LOST),
    Seam(_FUNC_GRAPH, "variables", "finding the variables of a step", _GRAPH_LOST),
    Seam(
        _FUNC_GRAPH, "outer_graph", "telling where a loss or a gradient is computed",
        "a loss in a conditional would be refused",
    ),
    Seam(_FUNC_GRAPH, "control_outputs", "running the side effects of a step", _GRAPH_LOST, STORED),
    Seam(_FUNC_GRAPH, "inputs", "following gradients into nested functions", _GRAPH_LOST, STORED),
    Seam(_FUNC_GRAPH, "outputs", "following gradients into nested functions", _GRAPH_LOST, STORED),
    Seam(
        "tensorflow.python.autograph.impl.api", "_attach_error_metadata", _USERS_LINE,
        "an error in a marked function would name a file that TensorFlow has generated",
    ),
    Seam(
        "tensorflow.python.autograph.pyct.error_utils.ErrorMetadataBase", "translated_stack", _USERS_LINE,
        "an error in a marked function would hide the error of the user's own line", STORED,
    ),
    Seam("tensorflow.Operation", "traceback", "recognising gradients", "as imperative_grad"),
    Seam("tensorflow.Operation", "op_def", "telling stateful operations from others", _GRAPH_LOST),
    Seam("tensorflow.Operation", "node_def", "reading the attributes of operations", _GRAPH_LOST),
    Seam(
        "threading", "_DummyThread", "letting TensorFlow's own threads see a model's state without waiting",
        "Python within a layer or a data pipeline could wait for the step that runs it, for ever",
    ),
    Seam(
        "tensorflow", "stateful draws have an attribute seed2", "giving each replica random numbers of its own",
        "replicas would draw the same numbers", BEHAVIOUR, probe=_draws_have_seeds,
    ),
    TAPE_IS_SEEN, GRAPH_IS_FOUND, HANDLE_IS_READ, CUSTOM_GRADIENT_IS_NAMED, SEED_GENERATOR,
    Seam(
        "tensorflow", "calls say which variables they only read (_read_only_resource_inputs)",
        "the ordering of reads and writes",
        "none are wrong: reads are taken for writes, and a step that calls a tf.function may be refused", AT_USE,
    ),
)
