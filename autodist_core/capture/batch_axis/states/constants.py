"""Values that a graph computes of constants alone, such as the permutation of a transpose.

In: a tensor of a graph. Out: its value as a NumPy array, or None if it depends on anything else than constants::

    Sub(Rank(x), 1)    array(2), for an `x` of three axes
    Shape(x)           None, if the batch size is open
"""

from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.seams.table import EVALUATE_CONSTANT

_LARGEST = 64
"""More entries than an axis list, a permutation or a shape has; nothing larger is computed."""


def value_of(tensor: Any) -> Any:
    """The value of a tensor that is made of constants alone; None where it is not known.

    >>> with tf.Graph().as_default():
    ...     last = tf.rank(tf.zeros((2, 3, 4))) - 1
    ...     print(value_of(tf.concat([[last], tf.range(1, last), [0]], 0)))
    [2 1 0]
    >>> with tf.Graph().as_default():
    ...     print(value_of(tf.range(tf.rank(0) + 4)[-2]), value_of(tf.range(tf.rank(0) + 4)[1:]))
    2 [1 2 3]
    """
    value = tf.get_static_value(tensor)
    if value is not None:
        return value
    count = tensor.shape.num_elements()
    return None if count is not None and count > _LARGEST else EVALUATE_CONSTANT.get()(tensor)


def number_of(tensor: Any) -> float | None:
    """The value of a tensor of one number that is made of constants alone; None for any other tensor.

    >>> number_of(tf.constant([4])), number_of(tf.constant([4, 5])), number_of(tf.constant("four"))
    (4, None, None)
    """
    value = value_of(tensor)
    if value is None or np.size(value) != 1 or not np.issubdtype(np.asarray(value).dtype, np.number):
        return None
    return np.asarray(value).reshape(()).item()
