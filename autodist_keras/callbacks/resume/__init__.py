"""`Resume`: a callback with which a killed `fit` goes on where it was, and what carries it out.

The callback, and `resumable`, in which `DistributedModel.fit` runs Keras's loop, are all that others use. In reading
order:

- ``callback``: the callback, and its place among the arguments of `fit`.
- ``resumable_fit``: one `fit` that saves states between steps, and begins where a state was saved.
- ``settings``: what must be as before: the arguments of `fit` and `compile`.
- ``variable_state``: variables, compressors, and the seed of keras.random.
- ``callback_state``: the state of the other callbacks.
- ``position``: the position in the data.
- ``encoding``, ``state_files``: values as JSON and arrays, files of them, and the thread that writes.
"""

from autodist_keras.callbacks.resume.callback import Resume, resumable

__all__ = ["Resume", "resumable"]
