"""The rules of the static analysis: what each type of operation makes of the states of its inputs.

In: an operation, and the states of its inputs. Out: the states of its results, or a `Finding` where the operation makes
the result of one example depend on other examples. `table` has the rule of each type of operation::

    arithmetic  what is computed entry by entry: sums, products, quotients and others
    along_axes  functions along axes, such as a softmax or a cumulative sum
    moving      other shapes, other axes, and several tensors in one
    slices      slices
    picking     entries taken from tensors, or put into tensors: by index, and by segment
    products    products that sum over axes: of matrices, and einsum
    counting    shapes and sizes, and what is made in a size
    ragged      ragged and sparse tensors
    inner       operations that run other graphs: functions, conditionals and loops
    lists       the lists of tensors that loops read and write
    writes      what is written to a variable
    by_example  functions of TensorFlow that treat each example by itself
"""
