"""The time of a step, predicted before anything runs.

The modules in the order of the flow: `profiles` has what is known of a model and a cluster, and what is assumed.
`of_step` reads the profile of a captured step; it alone needs TensorFlow. `charges` says what one variable adds to a
step, and `prediction` adds that up. `choosing` tries the builders.
"""
