"""Make TensorFlow forget the custom gradients of a traced graph.

In: the graph of a trace, after its gradients were computed. Out: TensorFlow's registry without the graph's custom
gradients. The registry would otherwise keep each of them for ever, with the graph and all variables that it captured.

>>> import tensorflow as tf
>>> with tf.Graph().as_default() as graph:
...     doubled = tf.custom_gradient(lambda x: (2.0 * x, lambda upstream: upstream))(tf.constant(1.0))
>>> forget(graph), forget(graph)
(1, 1)
"""

from typing import Any

from autodist_core.seams.table import GRADIENT_REGISTRY


def forget(graph: Any) -> int:
    """Make TensorFlow forget the custom gradients of a graph; return how many the graph has.

    No gradient may be computed through the graph afterwards. The custom gradients of functions that the graph calls
    stay, because another graph may call these functions too. The module's docstring has an example.
    """
    # TensorFlow has no public way to remove one.
    registered = GRADIENT_REGISTRY.get()._registry
    names = []
    for operation in graph.get_operations():
        if operation.type == "IdentityN":
            name = operation.node_def.attr["_gradient_op_type"].s.decode()
            if name.startswith("CustomGradient-"):
                names.append(name)
                registered.pop(name, None)
    return len(names)
