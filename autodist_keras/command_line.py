"""`autodist plan`: print the plan of a saved model, or compare all strategies for it.

In: the command's arguments: a cluster file, and a file that Keras saved. Out: the plan, on standard output.
"""

import argparse
import os
import zipfile
from pathlib import Path
from typing import Any

from autodist_core.auto import NAMES
from autodist_core.auto.comparison import comparison
from autodist_core.errors import CaptureError, StrategyError
from autodist_core.resource_spec import ResourceSpec
from autodist_core.strategy.written import read_builder
from autodist_keras.training.batches import read_batch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> parser.parse_args(["cluster.yml", "--model", "model.keras", "--strategy", "PS"]).strategy
    'PS'
    """
    parser.add_argument("file", metavar="cluster.yml", help="the file that describes the nodes")
    parser.add_argument("--model", required=True, metavar="model.keras", help="a model that Keras saved")
    parser.add_argument(
        "--strategy", metavar="NAME",
        help=f"{', '.join(NAMES)}, or by default Parallax; with options: 'AllReduce(chunk_size=1)', in quotes",
    )
    parser.add_argument(
        "--compare", type=int, metavar="EXAMPLES",
        help="predict a step of this many examples for every strategy; the machines need not be there",
    )
    parser.add_argument(
        "--no-share-memory", dest="share_memory", action="store_const", const=False,
        help="the plan for share_memory=False: replicas on the CPUs of one machine do as the strategy says",
    )


def run(options: argparse.Namespace) -> int:
    """Print the plan, and return the exit status.

    >>> import contextlib, io, tempfile
    >>> import keras
    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
    ...     cluster, model = Path(folder, "cluster.yml"), Path(folder, "model.keras")
    ...     _ = cluster.write_text("nodes: [{address: localhost, cpus: 2}]")
    ...     keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")]).save(model)
    ...     status = run(parser.parse_args([str(cluster), "--model", str(model), "--strategy", "PS"]))
    >>> status, printed.getvalue().splitlines()[0].partition(", ")[2]
    (0, 'PS @ 2 replicas')
    """
    from autodist_keras.model import DistributedModel

    # A model takes seconds to load. The other arguments are checked first.
    # What is compared is measured here, as for a strategy that chooses itself.
    strategy = options.strategy if options.compare is None else "auto"
    spec, builder = ResourceSpec(options.file), read_builder(strategy, NAMES)
    distributed = DistributedModel(saved_model(options.model), spec, builder, options.share_memory)
    print(distributed.plan() if options.compare is None else _compared(distributed, options.compare))
    return 0


def _compared(distributed: Any, examples: int) -> str:
    """The comparison of all strategies. The step is captured for zeros: what is in a batch does not change its time."""
    import numpy as np

    model = distributed.model
    tensors = [*(getattr(model, "inputs", None) or ()), *(getattr(model, "outputs", None) or ())]
    if examples < 1:
        raise StrategyError(f"--compare {examples}: expected the number of examples of a batch, at least 1.")
    if not tensors or any(None in tensor.shape[1:] for tensor in tensors):
        shapes = ", ".join(f"{tensor.name} {tuple(tensor.shape)}" for tensor in tensors) or "none, as of a subclass"
        raise StrategyError(
            f"--compare needs inputs and outputs whose sizes are known, besides that of the batch. The model has "
            f"{shapes}. Save a functional or sequential model with keras.Input(shape)."
        )

    def zeros(tensors: Any) -> Any:
        found = [np.zeros((examples, *tensor.shape[1:]), tensor.dtype) for tensor in tensors]
        return found if len(found) > 1 else found[0]

    # Any loss takes zeros of the shape of the outputs; that of the program may take labels of another one.
    model.compile(model.optimizer or "adam", "mse", jit_compile=False)
    captured = distributed._driver.captured_for(read_batch((zeros(model.inputs), zeros(model.outputs))))
    return comparison(captured.item, distributed._driver.settings.resource_spec, examples)


def saved_model(path: str | os.PathLike[str]) -> Any:
    """The model in a file. A CaptureError says why it cannot be loaded.

    >>> saved_model("missing.keras")
    Traceback (most recent call last):
    autodist_core.errors.CaptureError: missing.keras: there is no such file. Expected a model that ...
    """
    import keras

    expected = "Expected a model that `model.save(...)` wrote."
    if not Path(path).exists():
        raise CaptureError(f"{path}: there is no such file. {expected}")
    if not (zipfile.is_zipfile(path) or Path(path).suffix in (".h5", ".hdf5") or Path(path).is_dir()):
        raise CaptureError(f"{path}: this is no .keras file, which is a zip archive, and no .h5 file. {expected}")
    try:
        return keras.models.load_model(path)
    except Exception as error:
        # Keras raises errors of many types: for a file of another format, for a class that it cannot find.
        first = next(iter(str(error).strip().splitlines()), "")
        raise CaptureError(
            f"{path}: Keras cannot load a model from it ({type(error).__name__}: {first}). A model with classes of "
            "your own needs the program that registers them: call DistributedModel(model, spec).plan() there."
        ) from error
