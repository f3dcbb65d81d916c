"""The captured step as a value, and the only module that edits its graph.

`values` and `graph_item` define the value: variables, gradients, inputs, outputs and the serialized graph. They import
no TensorFlow. `serialization` converts the value to bytes and back. `index` answers questions about the graph: which
node reads which node, and which node touches which variable. `draws` finds the nodes that draw random numbers. `naming`
makes and reads names of nodes and tensors, and `ports` reads a node's inputs and outputs. `editor` reads, copies and
writes nodes, `graph_check` checks what it has changed, and `enclosing` puts nodes into functions. `union` makes one
step of several. `grouping` puts things into groups by a key, `reaching` finds those that are reached from others, and
`op_types` has types of operations that several stages tell apart, and `casts` finds casts that save bytes. `same`
compares objects by identity.
Capture, the kernels and the Keras front use these modules.
"""
