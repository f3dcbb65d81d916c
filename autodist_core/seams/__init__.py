"""Seams: what the project uses of other packages that is not their public API, and the check that it is there.

A private name of another package is used only if it stands in one of two tables, `autodist_core.seams.table` and
`autodist_keras.seams`, or among the attributes of instances in `tests/seams/test_uses.py`. A test reads the sources and
compares; the page `docs/developers/seams.md` shows all of them.

Whether the names of a table are there is examined once per process, when a step is captured or a model is wrapped. One
SeamError lists everything that is missing. What only a real step shows is tried by the code that relies on it. What
the packages do with the names besides, the tests examine on each version that setup.cfg allows.
"""
