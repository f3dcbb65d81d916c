"""NumbersTogether: the numbers that updates on several machines send each other travel together.

In: the finished order of a step. Out: one vector in place of many numbers. For a global norm over two servers::

    update/server_b/Sum, update/server_b/Sum_1   ->  update/server_b/together/... = Pack(Sum, Sum_1)
                                                     update/server_a/together/... = Unpack(...)

Numbers travel together if as many other messages precede each of them. So none waits for one that depends on it.
"""

import re

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.analysis.shapes import static_shapes
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.step import naming
from autodist_core.step.index import output_type

_OF_SERVER = re.compile("update/(server_[^/]+)/(.+)")


class NumbersTogether(Kernel):
    """Packs the numbers that servers need of each other.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS
    >>> example_change(PS(), "NumbersTogether", "Pack")
    ''
    """

    def apply(self, draft: Draft) -> None:
        """Replace the numbers that cross between two servers at one level by one vector."""
        if not packing.apart(owner.device for owner in draft.placement.owners if owner.replica is None):
            return
        editor, level_of, shapes = draft.editor, packing.messages_before(draft), static_shapes(draft.step)
        crossing: dict[tuple[str, str, int, int, tf.DType], dict[str, list[tuple[str, int]]]] = {}
        for node in editor:
            reader = _OF_SERVER.match(node.name)
            for position, source in enumerate(node.input) if reader else ():
                found = _OF_SERVER.match(source)
                name = naming.node_of(source)
                if not found or reader is None or not packing.apart([editor[name].device, node.device]):
                    continue
                captured = naming.canonical(found[2])
                known = naming.node_of(captured) in draft.step.nodes and not naming.branch_of(editor[name])
                if known and shapes.get(captured) == ():
                    key = (
                        found[1], reader[1], draft.step.update_of[naming.node_of(captured)], level_of[name],
                        output_type(draft.step, captured),
                    )
                    crossing.setdefault(key, {}).setdefault(source, []).append((node.name, position))
        for (home, owner, occurrence, level, dtype), numbers in crossing.items():
            if len(numbers) > 1:
                label = f"together/{occurrence}/{level}_{dtype.name}"
                _pack(draft, f"update/{home}/{label}_for_{owner}", f"update/{owner}/{label}_of_{home}", dtype, numbers)


def _pack(
    draft: Draft, sent: str, received: str, dtype: tf.DType, numbers: dict[str, list[tuple[str, int]]]
) -> None:
    editor = draft.editor
    here = editor[naming.node_of(next(iter(numbers)))].device
    there = editor[next(iter(numbers.values()))[0][0]].device
    editor.add("Pack", sent, list(numbers), here, N=len(numbers), T=dtype, axis=0)
    editor.add("Unpack", received, [sent], there, num=len(numbers), T=dtype, axis=0)
    for index, readers in enumerate(numbers.values()):
        for name, position in readers:
            editor.edit(name).set_input(position, naming.tensor(received, index))
