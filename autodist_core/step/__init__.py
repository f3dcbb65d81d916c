"""The captured step as a value, and the one place that edits its graph.

`graph_item` is the value: variables, gradients, inputs, outputs and the serialised graph. It imports no TensorFlow.
`index` answers questions about the graph: which node reads which, and which node touches which variable.
`editor` reads, copies and writes nodes. Capture, the kernels and the Keras front share all three.
"""
