"""The examination of a cluster before anything runs, and the report that ``autodist doctor`` prints.

In reading order:

- ``requirements``: what a node must have, compared with what its agent says of the node.
- ``report``: what an examination found of each node and of each pair of nodes, frozen.
- ``examination``: starts an agent on every node, asks each what it has, and lets each reach every other one.
- ``diagnosis``: an examination, and the latency and bandwidth of every link.
- ``report_text``: a report as text and as JSON.

It imports ``protocol`` and ``agents``. The folder ``chief`` starts every cluster with an examination; the command line
imports ``diagnosis`` and ``report_text``.
"""
