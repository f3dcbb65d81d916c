"""The captured step as a value, and the only module that edits its graph.

`values` and `graph_item` define the value: variables, gradients, inputs, outputs and the serialized graph. They import
no TensorFlow. `messages` converts the value to bytes and back. `index` answers questions about the graph: which node
reads which node, and which node touches which variable. `draws` finds the nodes that draw random numbers. `naming`
makes and reads names of nodes and tensors. `editor` reads, copies and writes nodes. Capture, the kernels and the Keras
front use all of them.
"""
