"""Questions about a captured step that a kernel asks before it changes anything: which operations can fail, which
gradients are products over rows. An analysis changes no graph.
"""
