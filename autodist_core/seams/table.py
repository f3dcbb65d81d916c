"""The seams into TensorFlow and Python. `autodist_keras.seams` has those into Keras.

Code that uses one of these names imports the seam and calls `get()`, which imports the part of TensorFlow then:

>>> from autodist_core.seams.table import OP_DEF
>>> OP_DEF.get()("Neg").name
'Neg'
"""

from functools import cache

from autodist_core.seams.seam import AT_USE, BEHAVIOUR, STORED, Seam, examine


@cache
def check() -> None:
    """Raise a SeamError that lists what is missing of TensorFlow; once it has passed, it costs nothing.

    >>> check()
    """
    examine(TABLE, "tensorflow")


def _draws_have_seeds() -> str:
    definition = OP_DEF.get()("RandomUniform")
    attributes = {attribute.name for attribute in definition.attr} if definition is not None else set()
    if "seed2" in attributes and definition.is_stateful:
        return ""
    return "RandomUniform is not a stateful operation with an attribute seed2"


_DATASET = "tensorflow.data.Dataset"
_FUNC_GRAPH = "tensorflow.python.framework.func_graph.FuncGraph"
_USERS_LINE = "naming the user's line in an error"

OP_DEF = Seam("tensorflow.python.framework.op_def_registry", "get", "the ordering of stateful operations")
EVALUATE_CONSTANT = Seam(
    "tensorflow.python.framework.tensor_util", "try_evaluate_constant", "reading axes that are computed of constants",
)
KERNELS = Seam("tensorflow.python.framework.kernels", "get_registered_kernels_for_op", "compiling with XLA")
ONEDNN = Seam(
    "tensorflow.python.util._pywrap_util_port", "IsMklEnabled", "telling whether TensorFlow uses oneDNN",
)
FUNCTION_TO_GRAPH = Seam(
    "tensorflow.python.framework.function_def_to_graph", "function_def_to_graph_def",
    "taking conditionals of the update apart",
)
FUNCTION_OF_GRAPH = Seam("tensorflow.Graph", "_get_function", "following gradients into nested functions")
LEGACY_FUNCTION = Seam(
    "tensorflow.python.framework.function", "_DefinedFunction", "telling functions without a traced graph from others",
)
CONTROL_FLOW_GRAPH = Seam(
    "tensorflow.python.ops.control_flow_v2_func_graphs", "ControlFlowFuncGraph",
    "telling a conditional from a nested tf.function while losses are corrected",
)
FUNC_GRAPH = Seam(
    "tensorflow.python.framework.func_graph", "FuncGraph", "telling the graph of a function from that of a process",
)
GRADIENT_REGISTRY = Seam("tensorflow.python.framework.ops", "gradient_registry", "releasing the graphs of traced steps")
GRADIENT_TAPE = Seam("tensorflow.python.eager.imperative_grad", "imperative_grad", "recognising gradients")
GRADIENTS_HELPER = Seam("tensorflow.python.ops.gradients_util", "_GradientsHelper", "recognising gradients")
CUSTOM_GRADIENT = Seam("tensorflow.python.ops.custom_gradient", "_graph_mode_decorator", "recognising custom gradients")
VARIABLE_HANDLE = Seam(
    "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", "handle", "finding the variables of a function",
)
PER_REPLICA = Seam("tensorflow.python.distribute.values", "PerReplica", "values of each replica")
PER_REPLICA_SPEC = Seam(
    "tensorflow.python.distribute.values", "PerReplicaSpec", "the element_spec of distributed datasets",
)
_TAPES = "tensorflow.python.pywrap_tfe"
RESTART_TAPES = Seam(_TAPES, "TFE_Py_TapeSetRestartOnThread", "tracing a function that another traced function runs")
STOP_TAPES = Seam(_TAPES, "TFE_Py_TapeSetStopOnThread", "tracing a function that another traced function runs")
TAPE_RECORDS = Seam(
    "tensorflow.python.eager.record", "could_possibly_record", "refusing a gradient of a marked function",
)
CALLABLE = Seam(
    "tensorflow.compat.v1.Session", "_make_callable_from_options", "running a step in a session",
    parameters=("self", "callable_options"),
)
EAGER_CONTEXT = Seam("tensorflow.python.eager.context", "context", "giving TensorFlow the functions of a step")
XSPACE = Seam("tensorflow.tsl.profiler.protobuf.xplane_pb2", "XSpace", "measuring the operations of a step")
_LOOKS = "seeing looks at variables"
CALL_FUNCTION = Seam(
    "tensorflow.python.eager.context.Context", "call_function", _LOOKS,
    parameters=("self", "name", "tensor_inputs", "num_outputs"),
    callers=("tensorflow.python.eager.polymorphic_function.atomic_function.AtomicFunction.call_flat",),
)
CREATE_ITERATOR = Seam(
    "tensorflow.python.data.ops.iterator_ops.OwnedIterator", "_create_iterator", _LOOKS, parameters=("self", "dataset"),
    callers=("__init__",),
)
_SERVERS = "tensorflow.python.training.server_lib"
SERVER = Seam(_SERVERS, "Server", "TensorFlow's server on each node")
CLUSTER_SPEC = Seam(_SERVERS, "ClusterSpec", "TensorFlow's server on each node")
TAPE_IS_SEEN = Seam(
    "tensorflow", "what a tape makes remembers the function that computed it", "recognising gradients", AT_USE,
)
GRAPH_IS_FOUND = Seam(
    "tensorflow", "the graph of a nested function is found by its name", "following gradients into nested functions",
    AT_USE,
)
HANDLE_IS_READ = Seam(
    "tensorflow", "an operation on a variable asks for its handle, or for its _handle", _LOOKS, AT_USE,
)
CUSTOM_GRADIENT_IS_NAMED = Seam(
    "tensorflow", "a custom gradient is an IdentityN that names it in _gradient_op_type",
    "releasing the graphs of traced steps", AT_USE,
)
SEED_GENERATOR = Seam(
    "tensorflow", "the state of an iterator of a shuffle has the numbers that its generator of seeds has drawn",
    "the order of a dataset after a failure", AT_USE,
)

TABLE: tuple[Seam, ...] = (
    OP_DEF, EVALUATE_CONSTANT, KERNELS, ONEDNN, FUNCTION_TO_GRAPH, FUNCTION_OF_GRAPH, LEGACY_FUNCTION,
    CONTROL_FLOW_GRAPH, FUNC_GRAPH, GRADIENT_REGISTRY, EAGER_CONTEXT, XSPACE,
    GRADIENT_TAPE, GRADIENTS_HELPER, CUSTOM_GRADIENT, VARIABLE_HANDLE, PER_REPLICA, PER_REPLICA_SPEC,
    RESTART_TAPES, STOP_TAPES, TAPE_RECORDS, CALLABLE, SERVER, CLUSTER_SPEC, CALL_FUNCTION, CREATE_ITERATOR,
    Seam(
        "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", "_handle", _LOOKS, STORED,
        callers=("handle",),
    ),
    Seam(_DATASET, "_inputs", _LOOKS),
    Seam(_DATASET, "_functions", _LOOKS),
    Seam("tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper", "function", _LOOKS),
    Seam("tensorflow.python.framework.registry.Registry", "_registry", "releasing the graphs of traced steps", STORED),
    Seam(_FUNC_GRAPH, "captures", "finding the variables and tables of a step"),
    Seam(_FUNC_GRAPH, "variables", "finding the variables of a step"),
    Seam(_FUNC_GRAPH, "outer_graph", "telling where a loss or a gradient is computed"),
    Seam(_FUNC_GRAPH, "control_outputs", "running the side effects of a step", STORED),
    Seam(_FUNC_GRAPH, "inputs", "following gradients into nested functions", STORED),
    Seam(_FUNC_GRAPH, "outputs", "following gradients into nested functions", STORED),
    Seam("tensorflow.python.autograph.impl.api", "_attach_error_metadata", _USERS_LINE),
    Seam("tensorflow.python.autograph.pyct.error_utils.ErrorMetadataBase", "translated_stack", _USERS_LINE, STORED),
    Seam("tensorflow.Operation", "traceback", "recognising gradients"),
    Seam("tensorflow.Operation", "op_def", "telling stateful operations from others"),
    Seam("tensorflow.Operation", "node_def", "reading the attributes of operations"),
    Seam("threading", "_DummyThread", "letting TensorFlow's own threads see a model's state without waiting"),
    Seam(
        "tensorflow", "stateful draws have an attribute seed2", "giving each replica random numbers of its own",
        BEHAVIOUR, probe=_draws_have_seeds,
    ),
    TAPE_IS_SEEN, GRAPH_IS_FOUND, HANDLE_IS_READ, CUSTOM_GRADIENT_IS_NAMED, SEED_GENERATOR,
    Seam(
        "tensorflow", "calls say which variables they only read (_read_only_resource_inputs)",
        "the ordering of reads and writes", AT_USE,
    ),
)
