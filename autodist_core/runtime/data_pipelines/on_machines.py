"""The data pipelines that the machines of one session run.

In: the batches of a training, which say their pass and position. Out: a `PipelineSlot` where the machines have the
batch next, and None where the batch must be fed. If the user's process goes through the dataset, the replicas on the
chief's machine are fed; else the agent there makes the batches as all others do.

Each machine has the dataset in a variable, and an iterator over it for each pass. A pass begins with the state of the
iterator in the user's process, so the machines continue exactly there. Graph and state go from machine to machine, so
the chief sends them once. The graph has the arrays of the dataset in it, so it goes in parts (`sent_arrays.py`). Where
the state does not say how many seeds each shuffle has drawn, the shuffles of each machine are told: a machine names
their generators, and a small dataset on such a generator sets it (`seed_probe.py`).

Where machines read files of their own (`by_file.py`), each has a graph, rows and samples of its own; all else is the
same.

A batch on which a loop runs once more is fed. The machines never search for a batch. Where they are elsewhere (after a
restart, after a step that failed, after a batch for which a machine had no replica), the batch is fed and `Pass.missed`
is set. The next batch then begins another pass, from where the user's process is. So nothing is computed a second time.

The first batch of a pipeline in a session is fed, too. The machines make it all the same, and its sample is compared.
A machine that cannot make it, because its files are missing, is found here: then each batch is fed.

TensorFlow may need as long to end an iterator as the iterator has lived, up to a minute, if tf.data tunes it. So nobody
waits for the end of one. A session that is closed before its iterators have ended hangs, so it is closed after them.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.errors import NodeLostError, amount
from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel import Compared, DistributedGraph, Placement, drawn, iterator_types, next_of, sample_of
from autodist_core.kernel.placement.placement import Replica
from autodist_core.log import log, stage
from autodist_core.resource_spec import DeviceSpec
from autodist_core.runtime.data_pipelines.batches import DataPipeline, DrawnBatch, DrawnRows, Pass, samples_of
from autodist_core.runtime.data_pipelines.failed_batches import in_one_line, in_words, of_data
from autodist_core.runtime.data_pipelines.graphs import written
from autodist_core.runtime.data_pipelines.seed_generators import short_nodes
from autodist_core.runtime.data_pipelines.seed_probe import SPEC
from autodist_core.runtime.interruptible import BrokenOffError
from autodist_core.runtime.sent_arrays import Place, Sender, in_parts

END_SECONDS = 5.0
"""How long the close of a session waits for the end of its iterators."""


@dataclass(eq=False)
class PipelineSlot:
    """A place for one pipeline at a time, on some machines."""

    name: str
    specs: tuple[Any, ...]
    placement: Placement
    hosts: tuple[str, ...]
    """All machines with replicas; without the chief's, where the user's process makes the batches too."""
    parts: Place
    """Where the graphs of a pipeline are while they are sent."""
    foreseen: bool = False
    by_share: bool = False
    """Whether each machine makes only its own rows."""
    content: DataPipeline | None = None
    tried: bool = False
    """Whether the machines have made a batch of the pipeline."""
    at: tuple[Pass, int] | None = None
    """The batch that all machines make next; None if they may be at different ones."""
    iterators: tuple[bytes, ...] = ()
    """The handles of the machines' present iterators."""
    probes: list[list[bytes]] = field(default_factory=list)
    """For each generator of seeds that machines are told of, the graphs that set it, one for each machine."""

    def put_into(
        self, graph: DistributedGraph, replicas: Sequence[Replica], arrays: Sequence[DrawnRows]
    ) -> DistributedGraph:
        """The graph of a step in which the machines' replicas take their rows of batches like this one."""
        components = [array.component for array in arrays]
        alone = Compared.NOTHING if self.by_share else Compared.FIRST
        compared = alone if self.foreseen else Compared.FED
        return drawn(graph, replicas, self.hosts, self.specs, components, compared)

    def feeds(
        self, arrays: Sequence[DrawnRows], inputs: Sequence[int], replica: int, start: int, stop: int
    ) -> list[Any] | None:
        """What a replica is fed in place of its rows; None if it is fed its rows."""
        hosts = [each.host for each in self.placement.replicas[: replica + 1]]
        host = hosts.pop()
        if not inputs or host not in self.hosts:
            return None
        number = self.share_of(host)
        begins = self.content.shares[number].start if self.content and self.by_share else 0
        told = [np.array([start - begins, stop - begins])]
        if not self.foreseen:
            told.append(arrays[0].batch.samples[number])
        return told if host in hosts else [self.iterators[self.hosts.index(host)], *told]

    def share_of(self, host: str) -> int:
        """Which of the machines' graphs and samples a machine has; the first where all machines make the same."""
        return self.placement.hosts.index(host) if self.by_share else 0

    @contextmanager
    def running(self, arrays: Sequence[DrawnRows], active: int) -> Iterator[None]:
        """Run a step on this batch in this block, with so many active replicas."""
        batch, self.at = arrays[0].batch, None
        try:
            yield
        except tf.errors.OpError as error:
            if not of_data(str(error)):
                raise
            first = next(each.host for each in self.placement.replicas if each.host in self.hosts)
            raise in_words(error, self.placement, first if self.foreseen else "") from error
        if {replica.host for replica in self.placement.replicas[:active]} >= set(self.hosts):
            self.at = batch.source, batch.position + 1


class PipelinesOnMachines:
    """The slots of one session."""

    def __init__(self, session: Any, placement: Placement, call: Callable[..., Any]) -> None:
        self._session, self._placement, self._call = session, placement, call
        self._chief = placement.tasks.chief
        self._sender: Any = Sender(session, self._chief, call)
        # The chief's machine first: graphs and states are there.
        self._hosts = tuple(sorted(placement.hosts, key=lambda host: host != self._chief))
        self._slots: list[PipelineSlot] = []
        self._calls: dict[tuple[str, str], Callable[..., Any]] = {}
        """What carries out each action of each slot."""
        self._ending: list[threading.Thread] = []
        self._unended = False
        """Whether machines may have an iterator that was not ended, as behind a broken network."""

    def slot_of(self, batch: DrawnBatch) -> PipelineSlot | None:
        """Where the machines make this batch next; None if it is to be fed."""
        pipeline = batch.source.pipeline
        if pipeline.fed or self._hosts == (self._chief,):
            return None
        if pipeline.shares and len(pipeline.shares) != len(self._hosts):
            before, left = len(pipeline.shares), len(self._hosts)
            pipeline.feed(f"its files were shared out among {before} machines, and {amount(left, 'is', 'are')} left")
            return None
        try:
            return self._at(batch)
        except (tf.errors.OpError, BrokenOffError) as error:
            # If the network is broken, the next step says so.
            log.debug("a data pipeline does not run on the machines", exc_info=True)
            pipeline.feed(f"a machine cannot make its first batch ({in_one_line(error)})")
            return None

    def release(self) -> None:
        """End all pipelines, and free their memory. The slots stay for the next ones."""
        doing = "the release of the data"
        for slot in self._slots:
            if slot.content is not None:
                slot.content = None
                self._end(slot)
                self._run(doing, slot, "drop")
            if slot.parts.held:
                self._sender.free(slot.parts, doing)

    def close(self, then: Callable[[bool], None]) -> None:
        """End all pipelines, and call `then` with whether they have ended. This returns after some seconds anyway."""
        for slot in self._slots:
            self._end(slot)
        ending = [thread for thread in self._ending if thread.is_alive()]
        self._session = self._sender = None
        self._slots.clear()
        self._calls.clear()

        def end() -> None:
            for thread in ending:
                thread.join()
            then(not self._unended)

        if not ending:
            end()
            return
        last = threading.Thread(target=end, daemon=True, name="autodist-end")
        last.start()
        last.join(END_SECONDS)

    def _at(self, batch: DrawnBatch) -> PipelineSlot | None:
        source = batch.source
        slot = next((each for each in self._slots if each.content is source.pipeline), None)
        if slot is not None and slot.at == (source, batch.position):
            source.forget()
            return slot
        if slot is not None and slot.at == (source, batch.position + 1):
            # A loop runs on the batch again. The machines make the next one.
            return None
        if batch.position > 0:
            source.missed = True
            return None
        slot = slot or self._filled(source.pipeline)
        self._end(slot)
        doing = "the beginning of a data pipeline"
        with stage(doing):
            slot.iterators = tuple(self._run(doing, slot, "create"))
            self._begin(doing, slot, source)
            if slot.tried:
                slot.at = source, 0
                return slot
            made = self._run(doing, slot, "make", slot.iterators)
        slot.tried, slot.at = True, (source, 1)
        own = batch.samples or samples_of(source.pipeline, source.element(batch.position))
        for host, sample in zip(slot.hosts, made, strict=True):
            if not np.array_equal(sample, own[slot.share_of(host)]):
                name = next(replica.name for replica in self._placement.replicas if replica.host == host)
                address = DeviceSpec.parse(name).address
                why, generators = "its files may be others", source.pipeline.generators
                if generators is not None and generators.has_caches:
                    why += ", or its cache has an order that was drawn before"
                source.pipeline.feed(f"{address} makes another first batch than the chief: {why}")
        return None

    def _begin(self, doing: str, slot: PipelineSlot, source: Pass) -> None:
        """Let each machine's iterator begin there. A machine that cannot must not break the others off.

        TensorFlow waits for ever for an iterator that runs a function when its restoring is broken off. So each
        machine restores in a call of its own.
        """
        if not source.state:
            self._run(doing, slot, "begin anew", slot.iterators)
            return
        self._run(doing, slot, "tell", [source.state])
        for host, iterator in zip(slot.hosts, slot.iterators, strict=True):
            self._run(doing, slot, f"begin {host}", [iterator])
        generators = source.pipeline.generators
        if generators is not None:
            for graphs, told in zip(slot.probes, generators.states(source.drawn), strict=True):
                self._run(doing, slot, "set seeds", [told, *graphs])

    def _filled(self, pipeline: DataPipeline) -> PipelineSlot:
        """A slot for a pipeline, whose graph is sent to the machines."""
        free = (
            slot for slot in self._slots
            if (slot.content is None or slot.content.over) and not slot.parts.broken
            and slot.foreseen == pipeline.foreseen and slot.by_share == bool(pipeline.shares)
            and slot.specs == pipeline.made_specs
        )  # fmt: skip
        slot = next(free, None) or self._add(pipeline)
        slot.content, slot.tried, slot.probes = None, False, []
        doing = "the sending of a data pipeline"
        with stage(doing):
            parts, bounds = in_parts(pipeline.graphs)
            self._sender.send(slot.parts, [parts], "the data pipeline")
            self._run(doing, slot, "put", [bounds])
            self._sender.free(slot.parts, doing)
            if pipeline.generators is not None:
                probes = map(pipeline.generators.probes_for, self._run(doing, slot, "find generators"))
                slot.probes = [list(graphs) for graphs in zip(*probes, strict=True)]
        slot.content = pipeline
        return slot

    def _add(self, pipeline: DataPipeline) -> PipelineSlot:
        name = f"pipeline{len(self._slots)}"
        hosts = tuple(host for host in self._hosts if pipeline.foreseen or host != self._chief)
        by_share = bool(pipeline.shares)
        parts = self._sender.place([f"{name}/parts"], [(tf.string, ())], hosts)
        slot = PipelineSlot(name, pipeline.made_specs, self._placement, hosts, parts, pipeline.foreseen, by_share)
        with defer_interrupt(), self._session.graph.as_default():
            for action, (nodes, feeds) in _actions(slot, self._chief).items():
                self._calls[name, action] = self._session.make_callable(nodes, feed_list=feeds)
        self._slots.append(slot)
        return slot

    def _end(self, slot: PipelineSlot) -> None:
        """End the iterators of a slot, without waiting for it."""
        slot.at = None
        iterators, slot.iterators = slot.iterators, ()
        if not iterators:
            return

        def end() -> None:
            try:
                self._call("the end of a data pipeline", call, *iterators)
            except (NodeLostError, BrokenOffError, tf.errors.OpError):
                log.debug("a data pipeline did not end", exc_info=True)
                self._unended = True

        call = self._calls[slot.name, "end"]
        thread = threading.Thread(target=end, daemon=True, name="autodist-pipeline-end")
        self._ending = [*(each for each in self._ending if each.is_alive()), thread]
        thread.start()

    def _run(self, doing: str, slot: PipelineSlot, action: str, arrays: Sequence[Any] = ()) -> Any:
        return self._call(doing, self._calls[slot.name, action], *arrays)


def _actions(slot: PipelineSlot, chief: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """Add the operations of a slot to the present graph; return the operations of each action, and its feeds."""
    with tf.device(chief):
        bounds = sent_bounds = tf.compat.v1.placeholder(tf.int64, [None, 2])
        state = sent_state = tf.compat.v1.placeholder(tf.string, [])
        seeds = sent_seeds = tf.compat.v1.placeholder(tf.string, [])
    typed, of_probe = iterator_types(slot.specs), iterator_types([SPEC])
    found: defaultdict[str, list[Any]] = defaultdict(list)
    handles, graphs = [], []
    begins: dict[str, tuple[list[Any], list[Any]]] = {}
    for host in slot.hosts:
        with tf.device(host):
            sent_bounds, sent_state, sent_seeds = map(tf.identity, (sent_bounds, sent_state, sent_seeds))
            holder = tf.raw_ops.VarHandleOp(dtype=tf.variant, shape=[], shared_name=f"{slot.name}/dataset")
            parts = tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[None], shared_name=slot.parts.names[0])
            begin, stop = tf.unstack(sent_bounds[slot.share_of(host)])
            graph = tf.strings.reduce_join(tf.raw_ops.ReadVariableOp(resource=parts, dtype=tf.string)[begin:stop])
            dataset = tf.raw_ops.DatasetFromGraph(graph_def=graph)
            found["put"].append(tf.raw_ops.AssignVariableOp(resource=holder, value=dataset))
            found["drop"].append(tf.raw_ops.DestroyResourceOp(resource=holder))
            new = tf.raw_ops.AnonymousIterator(**typed)
            found["create"].append(tf.raw_ops.IteratorToStringHandle(resource_handle=new))
            handles.append(tf.compat.v1.placeholder(tf.string, []))
            iterator = tf.raw_ops.IteratorFromStringHandleV2(string_handle=handles[-1], **typed)
            held = tf.raw_ops.ReadVariableOp(resource=holder, dtype=tf.variant)
            anew = tf.raw_ops.MakeIterator(dataset=held, iterator=iterator)
            found["begin anew"].append(anew)
            told = tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=f"{slot.name}/state")
            found["tell"].append(tf.raw_ops.AssignVariableOp(resource=told, value=sent_state))
            saved = tf.raw_ops.ReadVariableOp(resource=told, dtype=tf.string)
            begins[f"begin {host}"] = [_begun(iterator, anew, saved, told)], [handles[-1]]
            found["make"].append(sample_of(next_of(handles[-1], slot.specs)))
            found["end"].append(tf.raw_ops.DestroyResourceOp(resource=iterator))
            found["find generators"].append(short_nodes(written(held)))
            graphs.append(tf.compat.v1.placeholder(tf.string, []))
            probe = tf.raw_ops.AnonymousIterator(**of_probe)
            made = tf.raw_ops.MakeIterator(dataset=tf.raw_ops.DatasetFromGraph(graph_def=graphs[-1]), iterator=probe)
            found["set seeds"].append(_begun(probe, made, sent_seeds, probe))
    feeds = {
        "put": [bounds], "drop": [], "create": [], "begin anew": handles, "tell": [state], "make": handles,
        "end": handles, "find generators": [], "set seeds": [seeds, *graphs],
    }
    return {action: (nodes, feeds[action]) for action, nodes in found.items()} | begins


def _begun(iterator: Any, made: Any, saved: Any, then: Any) -> Any:
    """Let an iterator, which another operation makes, go on from a saved state; then end another resource."""
    with tf.control_dependencies([made]):
        begun = tf.raw_ops.DeserializeIterator(
            resource_handle=iterator, serialized=tf.io.parse_tensor(saved, tf.variant)
        )
    with tf.control_dependencies([begun]):
        return tf.raw_ops.DestroyResourceOp(resource=then)
