"""The seams into TensorFlow and Python. `autodist_keras.seams` has those into Keras.

Code that uses one of these names imports the seam and calls `get()`, which imports the part of TensorFlow then:

>>> from autodist_core.seams.table import OP_DEF
>>> OP_DEF.get()("Neg").name
'Neg'
"""

from functools import cache

from autodist_core.seams.seam import Seam, examine


@cache
def check() -> None:
    """Raise a SeamError that lists what is missing of TensorFlow; once it has passed, it costs nothing.

    >>> check()
    """
    examine(TABLE, "tensorflow")


_DATASET = "tensorflow.data.Dataset"
_FUNC_GRAPH = "tensorflow.python.framework.func_graph.FuncGraph"
_USERS_LINE = "naming the user's line in an error"

OP_DEF = Seam("tensorflow.python.framework.op_def_registry", "get", "the ordering of stateful operations")
WITHOUT_VALUE = Seam(
    "tensorflow.python.ops.resource_variable_ops", "UninitializedVariable", "models whose variables have no values",
)
EVALUATE_CONSTANT = Seam(
    "tensorflow.python.framework.tensor_util", "try_evaluate_constant", "reading axes that are computed of constants",
)
KERNELS = Seam("tensorflow.python.framework.kernels", "get_registered_kernels_for_op", "compiling with XLA")
ONEDNN = Seam("tensorflow.python.util._pywrap_util_port", "IsMklEnabled", "telling whether TensorFlow uses oneDNN")
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
CALLABLE = Seam("tensorflow.compat.v1.Session", "_make_callable_from_options", "running a step in a session")
EAGER_CONTEXT = Seam("tensorflow.python.eager.context", "context", "giving TensorFlow the functions of a step")
XSPACE = Seam("tensorflow.tsl.profiler.protobuf.xplane_pb2", "XSpace", "measuring the operations of a step")
_LOOKS = "seeing looks at variables"
CALL_FUNCTION = Seam("tensorflow.python.eager.context.Context", "call_function", _LOOKS)
CREATE_ITERATOR = Seam("tensorflow.python.data.ops.iterator_ops.OwnedIterator", "_create_iterator", _LOOKS)
_SERVERS = "tensorflow.python.training.server_lib"
SERVER = Seam(_SERVERS, "Server", "TensorFlow's server on each node")
CLUSTER_SPEC = Seam(_SERVERS, "ClusterSpec", "TensorFlow's server on each node")
TAPE_IS_SEEN = Seam(
    "tensorflow", "what a tape makes remembers the function that computed it", "recognising gradients", at_use=True,
)
GRAPH_IS_FOUND = Seam(
    "tensorflow", "the graph of a nested function is found by its name", "following gradients into nested functions",
    at_use=True,
)
HANDLE_IS_READ = Seam(
    "tensorflow", "an operation on a variable asks for its handle, or for its _handle", _LOOKS, at_use=True,
)
CUSTOM_GRADIENT_IS_NAMED = Seam(
    "tensorflow", "a custom gradient is an IdentityN that names it in _gradient_op_type",
    "releasing the graphs of traced steps", at_use=True,
)
SEED_GENERATOR = Seam(
    "tensorflow", "the state of an iterator of a shuffle has the numbers that its generator of seeds has drawn",
    "the order of a dataset after a failure", at_use=True,
)

TABLE: tuple[Seam, ...] = (
    Seam(_DATASET, "_inputs", _LOOKS),
    Seam(_DATASET, "_functions", _LOOKS),
    Seam("tensorflow.python.data.ops.structured_function.StructuredFunctionWrapper", "function", _LOOKS),
    Seam(_FUNC_GRAPH, "captures", "finding the variables and tables of a step"),
    Seam(_FUNC_GRAPH, "variables", "finding the variables of a step"),
    Seam(_FUNC_GRAPH, "outer_graph", "telling where a loss or a gradient is computed"),
    Seam("tensorflow.python.autograph.impl.api", "_attach_error_metadata", _USERS_LINE),
    Seam("tensorflow.Operation", "traceback", "recognising gradients"),
    Seam("tensorflow.Operation", "op_def", "telling stateful operations from others"),
    Seam("tensorflow.Operation", "node_def", "reading the attributes of operations"),
    Seam("threading", "_DummyThread", "letting TensorFlow's own threads see a model's state without waiting"),
    Seam(
        "tensorflow", "calls say which variables they only read (_read_only_resource_inputs)",
        "the ordering of reads and writes", at_use=True,
    ),
    *(each for each in tuple(globals().values()) if isinstance(each, Seam)),  # those above, for which code asks
)
