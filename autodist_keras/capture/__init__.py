"""From a Keras model and a batch to a captured step: the trace, and the hooks on Keras that the trace needs.

In: a model, one of its steps, and the types of a batch. Out: a `CapturedStep`. For `model.train_step`, in short::

    optimizers.py  gradient -> Identity(gradient)     a marker behind each gradient
    losses.py      loss * examples / total            the replica's share, where the tape begins
    own_losses.py  sums are added up, means counted   the losses of a train_step of the user's own
    tracing.py     the FuncGraph of the step          -> autodist_core.capture -> GraphItem
"""
