"""`autodist plan`: print the plan of a saved model.

In: the command's arguments: a cluster file, and a file that Keras saved. Out: the plan, on standard output.
"""

import argparse
import os
import zipfile
from pathlib import Path
from typing import Any

from autodist_core.auto import NAMES
from autodist_core.errors import CaptureError
from autodist_core.resource_spec import ResourceSpec
from autodist_core.strategy.written import read_builder


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
    spec, builder = ResourceSpec(options.file), read_builder(options.strategy, NAMES)
    print(DistributedModel(saved_model(options.model), spec, builder, options.share_memory).plan())
    return 0


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
