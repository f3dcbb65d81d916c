"""Load variables into a session and read them, in messages of a limited size.

In: variables, a placement and values. Out: operations in the session's graph, and values. Over a cluster a message must
stay below 2 GB. So many small variables travel in one call, and a large variable travels by its rows. A value for all
machines passes from each machine to the next, so the chief sends it once. `forget` frees the copies of the chief's
machine while the program has the values, and `load(..., here=True)` writes them again. A value that is a recipe does
not travel: each machine draws what it has of it.

>>> table = Variable("table", (5, 2), "float32")
>>> [(piece.start, piece.stop, piece.size) for piece in pieces(table, limit=16)]
[(0, 2, 16), (2, 4, 16), (4, 5, 8)]
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel import Placement
from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Copy
from autodist_core.runtime.large_reads import WITHOUT_KERNELS, LargeReads, Source, handle_of
from autodist_core.runtime.recipe import Recipe
from autodist_core.runtime.recovery.on_disk import Away, array_of, fill, room
from autodist_core.step.graph_item import Variable
from autodist_core.step.grouping import grouped

PIECE_BYTES = 1 << 26
"""The bytes of one piece of a variable, or of small variables in one message. So a message has one piece of each.

TensorFlow copies each message, in the program and on the machines. Memory is given back to the system in blocks of more
than 32 MiB only.
"""


@dataclass(frozen=True)
class Piece:
    """Some rows of a variable, or the whole variable.

    >>> Piece(Variable("w", (3, 2), "float32"), 1, 3).of(np.array([[1, 2], [3, 4], [5, 6]])).tolist()
    [[3, 4], [5, 6]]
    """

    variable: Variable
    start: int = 0
    stop: int | None = None
    """None for all rows."""
    here: bool = False
    """Whether only the copies in the memory of the chief's machine are meant, not those of its GPUs."""

    @property
    def rows(self) -> tuple[int, int]:
        """The first row, and the one after the last."""
        return self.start, (*self.variable.shape, 1)[0] if self.stop is None else self.stop

    def rows_of(self, part: Variable) -> tuple[int, int, int]:
        """The rows that a shard, or the whole variable, has of this piece, and the first row that it has at all.

        >>> part = Variable("w/part_1", (3, 2), "float32", part_of="w", offset=2)
        >>> Piece(Variable("w", (5, 2), "float32"), 1, 3).rows_of(part)
        (2, 3, 2)
        """
        low, high = self.rows
        if not part.part_of or part.axis > 0:
            return low, high, 0
        return max(low, part.offset), min(high, part.offset + part.shape[0]), part.offset

    @property
    def size(self) -> int:
        """The piece's bytes."""
        if self.stop is None:
            return self.variable.byte_size
        return self.variable.byte_size // self.variable.shape[0] * (self.stop - self.start)

    @property
    def is_last(self) -> bool:
        """Whether no piece of the variable follows."""
        return self.stop is None or self.stop == self.variable.shape[0]

    def of(self, value: np.ndarray) -> np.ndarray:
        """The piece's rows of a value of the variable."""
        return value if self.stop is None else value[self.start : self.stop]


def pieces(variable: Variable, limit: int, here: bool = False) -> Iterator[Piece]:
    """Cut a variable into pieces of at most `limit` bytes, or into single rows. The module has an example."""
    if variable.byte_size <= limit or not variable.shape:
        yield Piece(variable, here=here)
        return
    rows = max(1, limit * variable.shape[0] // variable.byte_size)
    for start in range(0, variable.shape[0], rows):
        yield Piece(variable, start, min(start + rows, variable.shape[0]), here)


def messages(found: Iterable[Piece], limit: int) -> Iterator[list[Piece]]:
    """Group pieces into messages of at most `limit` bytes, or of one piece.

    >>> small = [Piece(Variable(name, (2,), "float32")) for name in "abc"]
    >>> [[piece.variable.name for piece in message] for message in messages(small, limit=16)]
    [['a', 'b'], ['c']]
    """
    message: list[Piece] = []
    filled = 0
    for piece in found:
        size = piece.size
        if message and filled + size > limit:
            yield message
            message, filled = [], 0
        message.append(piece)
        filled += size
    if message:
        yield message


class Transfers:
    """Writes and reads the variables of one session.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import AllReduce
    >>> session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(device_count={"CPU": 2}))
    >>> placement, (kernel, *_) = example_placement(AllReduce()), example_step().variables
    >>> transfers = Transfers(session, placement, lambda doing, call, *arrays: call(*arrays))
    >>> transfers.load([kernel], {"kernel": np.ones((3, 1), "float32")})
    >>> [copy.name for copy in placement.copies("kernel")], dict(transfers.read_each([kernel]))["kernel"].tolist()
    (['kernel@replica0', 'kernel@replica1'], [[1.0], [1.0], [1.0]])
    >>> session.close()
    """

    def __init__(self, session: Any, placement: Placement, call: Callable[..., Any]) -> None:
        self._session = session
        self._placement = placement
        self._call = call
        self._made: dict[tuple[str, Piece], tuple[list[Any], list[Any]]] = {}
        """The feeds and the operations for what is done with a piece."""
        self._calls: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._adopted: dict[str, Copy] = {}
        self._large = LargeReads(session, call)

    def adopt(self, variable: AddedVariable) -> Variable:
        """Move a variable that a kernel added, too. The placement does not know its copy."""
        self._adopted[variable.name] = Copy(variable.name, variable.device)
        return Variable(variable.name, variable.shape, variable.dtype)

    def load(self, variables: Sequence[Variable], values: Mapping[str, Away | np.ndarray], here: bool = False) -> None:
        """Write every copy of each variable, or those that `forget` frees. What is a recipe does not travel."""
        recipes = {each: recipe for each in variables if isinstance(recipe := values[each.name], Recipe)}
        self._draw(recipes, here)
        found = list(self._messages([each for each in variables if each not in recipes], here))
        self._prepare(("load", message) for message in found)
        for message in found:
            self._run("load", message, [piece.of(array_of(values[piece.variable.name])) for piece in message])

    def forget(self, variables: Iterable[Variable]) -> list[int]:
        """Free the copies in the memory of the chief's machine, and return the bytes of each.

        Until they are loaded, a read of one is an error.
        """
        found = [Piece(variable, here=True) for variable in variables]
        self._prepare([("forget", found)])
        self._run("forget", found)
        return [part.byte_size for piece in found for part, _ in self._of_copies(piece)]

    def read_each(self, variables: Sequence[Variable]) -> Iterator[tuple[str, np.ndarray]]:
        """Read the current value of each variable, one after the other."""
        sources = self.sources(variables)
        large = {name: source for name, source in sources.items() if LargeReads.takes(*source)}
        sent = list(self._messages([variable for variable in variables if variable.name not in large]))
        self._prepare(("read", message) for message in sent)
        if large:
            yield from self._large.read_each(large)
        value: Any = None
        for message in sent:
            for piece, array in zip(message, self._run("read", message), strict=True):
                if piece.stop is None:
                    value = array
                else:
                    value = room(piece.variable.shape, array.dtype) if piece.start == 0 else value
                    fill(value[piece.start : piece.stop], array)
                if piece.is_last:
                    yield piece.variable.name, value

    def sources(self, variables: Iterable[Variable]) -> dict[str, tuple[Variable, Sequence[Source]]]:
        """Each variable, and the copy of it that is read, or one of each of its shards."""
        return {variable.name: (variable, self._sources(variable)) for variable in variables}

    def _prepare(self, found: Iterable[tuple[str, Sequence[Piece]]]) -> None:
        """Make the operations of all pieces before the first message. TensorFlow reloads a graph that has grown."""
        with defer_interrupt():
            for what, message in found:
                for piece in message:
                    if (what, piece) not in self._made:
                        self._made[what, piece] = self._operations(what, piece)

    def _operations(self, what: str, piece: Piece) -> tuple[list[Any], list[Any]]:
        if what == "load":
            return self._writer(piece)
        return [], [self._reader(piece)] if what == "read" else self._freeing(piece)

    def _messages(self, variables: Sequence[Variable], here: bool = False) -> Iterator[list[Piece]]:
        found = (piece for variable in variables for piece in pieces(variable, PIECE_BYTES, here))
        return messages(found, PIECE_BYTES)

    def _run(self, what: str, message: Sequence[Piece], arrays: Sequence[Any] = ()) -> Any:
        key = what, *message
        if key not in self._calls:
            made = [self._made[what, piece] for piece in message]
            feeds, nodes = ([each for pair in made for each in pair[index]] for index in (0, 1))
            if not nodes:
                return []
            with defer_interrupt():
                self._calls[key] = self._session.make_callable(nodes, feed_list=feeds)
        return self._call("the moving of variables", self._calls[key], *arrays)

    def _copies(self, piece: Piece, name: str) -> Sequence[Copy]:
        """The copies of a variable, or of a shard, that a piece is for."""
        adopted, chief = self._adopted.get(name), self._placement.tasks.chief
        copies = (adopted,) if adopted else self._placement.copies(name)
        near = [copy for copy in copies if host_of(copy.device) == chief and "/device:CPU:" in copy.device]
        return near if piece.here else copies

    def _sources(self, variable: Variable) -> Sequence[Source]:
        adopted = self._adopted.get(variable.name)
        return ((variable, adopted),) if adopted else self._placement.read_from(variable)

    def _of_copies(self, piece: Piece) -> Iterator[tuple[Variable, Copy]]:
        for part in (piece.variable, *self._placement.parts.get(piece.variable.name, ())):
            for copy in self._copies(piece, part.name):
                yield part, copy

    def _freeing(self, piece: Piece) -> list[Any]:
        made = []
        for part, copy in self._of_copies(piece):
            with self._session.graph.as_default(), tf.device(copy.device):
                made.append(tf.raw_ops.DestroyResourceOp(resource=handle_of(part, copy)))
        return made

    def _writer(self, piece: Piece) -> tuple[list[Any], list[Any]]:
        variable, copies = piece.variable, self._copies(piece, piece.variable.name)
        shape = variable.shape if piece.stop is None else (piece.stop - piece.start, *variable.shape[1:])
        chief, partial = self._placement.tasks.chief, piece.stop is not None
        with self._session.graph.as_default():
            with tf.device(chief):
                feed = tf.compat.v1.placeholder(tf.as_dtype(variable.dtype), shape)
            zeros = [copy for copy in copies if copy.starts_from_zero(variable)]
            shared = [copy for copy in copies if copy not in zeros]
            writes = _chain(variable, shared, feed, piece.start, partial, chief)
            for copy in zeros:
                with tf.device(copy.device):
                    writes.append(_write(variable, copy, tf.zeros(shape, feed.dtype), piece.start, partial))
            for part in self._placement.parts.get(variable.name, ()):
                writes += self._write_part(piece, part, feed)
        return [feed], writes

    def _write_part(self, piece: Piece, part: Variable, source: Any) -> list[Any]:
        """Operations that write the rows of a piece to one shard of its variable."""
        low, high, first = piece.rows_of(part)
        if low >= high and piece.stop is not None:
            return []
        begin = [low - piece.start, *(part.offset if axis == part.axis else 0 for axis in range(1, len(part.shape)))]
        size = [high - low, *part.shape[1:]]
        with tf.device(self._placement.tasks.chief):
            rows = tf.slice(source, begin, size)
            if not part.dtype.startswith((*WITHOUT_KERNELS, "str")):
                # A copy: a shard on this machine would share the memory of the whole value, and keep all of it.
                rows = tf.raw_ops.DeepCopy(x=rows)
        copies, chief = self._copies(piece, part.name), self._placement.tasks.chief
        return _chain(part, copies, rows, low - first, piece.stop is not None, chief)

    def _draw(self, recipes: Mapping[Variable, Recipe], here: bool) -> None:
        """Let each machine draw what it has of variables, in pieces. The machines draw at the same time."""
        calls = list[tuple[Any, ...]]()
        with defer_interrupt():  # all operations before the first call
            # Each call takes a cluster a tenth of a second, so several small variables are drawn in one.
            for message in messages((Piece(each, here=here) for each in recipes), PIECE_BYTES):
                drawn = [each for whole in message for each in self._in_pieces(whole, recipes[whole.variable])]
                calls += zip_longest(*drawn, fillvalue=([], {}))
        for together in calls:
            writes, feeds = chain(*(found for found, _ in together)), ChainMap(*(fed for _, fed in together))
            self._call("the drawing of first values", self._session.run, list(writes), dict(feeds))

    def _in_pieces(self, whole: Piece, recipe: Recipe) -> Iterator[list[tuple[list[Any], dict[Any, Any]]]]:
        """For each shard and machine, the operations of each piece."""
        hosts = grouped(self._of_copies(whole), lambda found: (found[0], host_of(found[1].device)))
        for (part, host), found in hosts.items():
            limit = PIECE_BYTES * part.byte_size // whole.size if part.axis > 0 else PIECE_BYTES
            yield [self._drawn(recipe, piece, host, found) for piece in pieces(part, limit)]

    def _drawn(
        self, recipe: Recipe, piece: Piece, host: str, copies: Sequence[tuple[Variable, Copy]]
    ) -> tuple[list[Any], dict[Any, Any]]:
        """Operations that draw some rows of a shard or variable for its copies on a machine, and what they are fed."""
        part, (low, high) = piece.variable, piece.rows
        first = part.offset if part.axis == 0 else 0
        with self._session.graph.as_default(), tf.device(host):
            feeds, rows = recipe.rows(first + low, first + high)
            value = rows if part.axis == 0 else part.entries_of(rows)
            zeros = tf.zeros_like(value)
            return [
                _write(part, copy, zeros if copy.starts_from_zero(part) else value, low, piece.stop is not None)
                for _, copy in copies
            ], feeds

    def _reader(self, piece: Piece) -> Any:
        found = []
        with self._session.graph.as_default():
            for source, copy in (sources := self._sources(piece.variable)):
                low, high, first = piece.rows_of(source)
                if piece.stop is None or low < high:
                    found.append(_rows(source, copy, low - first, piece.stop and high - first))
            with tf.device(self._placement.tasks.chief):
                return found[0] if len(found) == 1 else tf.concat(found, axis=sources[0][0].axis)


def _any_values(part: Variable, handle: Any) -> Any:
    """Values that are no constant: TensorFlow folds constants into one, and keeps it as long as the graph."""
    dtype = tf.as_dtype(part.dtype)
    if part.dtype.startswith((*WITHOUT_KERNELS, "str")):
        return tf.zeros(part.shape, dtype)
    return tf.fill(part.shape, tf.cast(tf.raw_ops.VarIsInitializedOp(resource=handle), dtype))


def _chain(variable: Variable, copies: Sequence[Copy], source: Any, start: int, partial: bool, host: str) -> list[Any]:
    """Operations that write one value to several copies. Each machine gets the value once, from the machine before."""
    writes, first = [], host
    # A machine's copies one after the other, those of `first` before all: the value comes to each machine once.
    for copy in sorted(copies, key=lambda copy: (host_of(copy.device) != first, host_of(copy.device))):
        if host_of(copy.device) != host:
            host = host_of(copy.device)
            with tf.device(host):
                source = tf.identity(source)
        writes.append(_write(variable, copy, source, start, partial))
    return writes


def _write(variable: Variable, copy: Copy, value: Any, start: int, partial: bool) -> Any:
    """Write a copy, or some rows of it. The first ones make it, and from the last ones on steps read it in place."""
    with tf.device(copy.device):
        handle = handle_of(variable, copy)
        if not partial:
            return tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        made = [tf.raw_ops.AssignVariableOp(resource=handle, value=_any_values(variable, handle))] if start == 0 else []
        stop = start + value.shape[0]
        with tf.control_dependencies(made):
            written = tf.raw_ops.ResourceStridedSliceAssign(
                ref=handle, begin=[start], end=[stop], strides=[1], value=value
            )
        # After a write of some rows, each read would copy all rows.
        with tf.control_dependencies([written]):
            return tf.raw_ops.DisableCopyOnRead(resource=handle) if stop == variable.shape[0] else written


def _rows(variable: Variable, copy: Copy, start: int, stop: int | None) -> Any:
    with tf.device(copy.device):
        value = tf.raw_ops.ReadVariableOp(resource=handle_of(variable, copy), dtype=tf.as_dtype(variable.dtype))
        return value if stop is None else value[start:stop]
