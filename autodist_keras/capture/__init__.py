"""From a Keras model and a batch to a captured step: the trace, and the hooks on Keras that the trace needs."""
