"""NumbersTogether: the numbers that updates on several machines send each other travel together.

In: the finished order of a step. Out: one vector in place of many numbers. For a global norm over two servers::

    update/server_b/Sum, update/server_b/Sum_1   ->  update/server_b/together/... = Pack(Sum, Sum_1)
                                                     update/server_a/together/... = Unpack(...)

Numbers travel together if as many other messages precede each of them. So none waits for one that depends on it.
"""

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.analysis.shapes import static_shapes
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.step import naming
from autodist_core.step.index import output_type


class NumbersTogether(Kernel):
    """Packs the numbers that servers need of each other.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS
    >>> example_change(PS(), "NumbersTogether", "Pack")
    ''
    """

    def apply(self, draft: Draft) -> None:
        """Replace the numbers that cross between two servers at one level by one vector."""
        servers = [owner for owner in draft.placement.owners if owner.replica is None]
        if not packing.apart(owner.device for owner in servers):
            return
        made = {owner.copy_of(name): (owner.name, name) for owner in servers for name in draft.step.update_of}
        editor, level_of, shapes = draft.editor, packing.messages_before(draft), static_shapes(draft.step)
        crossing: dict[tuple[str, str, int, int, tf.DType], dict[str, list[str]]] = {}
        for node in editor:
            for source in dict.fromkeys(naming.data_inputs(node)) if node.name in made else ():
                name, output = naming.split(source)
                if name not in made or not packing.apart([editor[name].device, node.device]):
                    continue
                home, captured = made[name]
                number = naming.tensor(captured, output)
                if shapes.get(number) == () and not naming.branch_of(editor[name]):
                    occurrence, dtype = draft.step.update_of[captured], output_type(draft.step, number)
                    key = home, made[node.name][0], occurrence, level_of[name], dtype
                    crossing.setdefault(key, {}).setdefault(source, []).append(node.name)
        for (home, owner, occurrence, level, dtype), numbers in crossing.items():
            if len(numbers) > 1:
                label = f"together/{occurrence}/{level}_{dtype.name}"
                _pack(draft, f"update/{home}/{label}_for_{owner}", f"update/{owner}/{label}_of_{home}", dtype, numbers)


def _pack(draft: Draft, sent: str, received: str, dtype: tf.DType, numbers: dict[str, list[str]]) -> None:
    editor = draft.editor
    here = editor[naming.node_of(next(iter(numbers)))].device
    there = editor[next(iter(numbers.values()))[0]].device
    editor.add("Pack", sent, list(numbers), here, N=len(numbers), T=dtype, axis=0)
    editor.add("Unpack", received, [sent], there, num=len(numbers), T=dtype, axis=0)
    for index, (number, readers) in enumerate(numbers.items()):
        for name in readers:
            editor.read_instead(name, {number: naming.tensor(received, index)})
