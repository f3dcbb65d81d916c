"""The compressors' state outside a session: between two sessions, and in the file of a saved model.

In: the values that `Session.read_added` returns. Out: values for `Session.load_added`, or a member of a `.keras` file.
Such a file is a zip archive. Keras reads the members that it knows; this module adds one more.

>>> import tempfile
>>> state = CompressorState("3f9c21", {"compressor/error/kernel@replica0": np.zeros(2)})
>>> with tempfile.TemporaryDirectory() as folder:
...     zipfile.ZipFile(f"{folder}/model.keras", "w").close()
...     state.write(f"{folder}/model.keras")
...     CompressorState.read(f"{folder}/model.keras")
CompressorState(strategy='3f9c21', values={'compressor/error/kernel@replica0': array([0., 0.])})
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from os import PathLike
from typing import Any, cast

import numpy as np

from autodist_core.errors import SessionError
from autodist_core.log import log

MEMBER = "autodist/compressor_state.npz"
_STRATEGY = "strategy"


@dataclass(frozen=True, eq=False)
class CompressorState:
    """The state of a strategy's compressors: residuals and directions, by name and replica."""

    strategy: str
    """The strategy's id. Another strategy cannot use these values."""
    values: Mapping[str, np.ndarray]

    def for_strategy(self, strategy: str) -> Mapping[str, np.ndarray]:
        """The values for a session of this strategy; none, and a line in the log, if they are another strategy's.

        >>> CompressorState("3f9c21", {"error": np.zeros(2)}).for_strategy("3f9c21")
        {'error': array([0., 0.])}
        """
        if strategy == self.strategy or not self.values:
            return self.values
        log.warning(
            "The compressors start anew: what they kept was strategy %s's, and this is strategy %s.",
            self.strategy, strategy,
        )
        return {}

    def write(self, path: str | PathLike[str]) -> None:
        """Add the state to the file of a saved model. If the file is no zip archive, write a line to the log instead.

        The module's docstring has an example.
        """
        if not zipfile.is_zipfile(path):
            log.warning("%s holds no compressor state; save to a .keras file to keep it.", path)
            return
        buffer, arrays = BytesIO(), {_STRATEGY: np.array(self.strategy), **self.values}
        np.savez(buffer, **cast(Any, arrays))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(MEMBER, buffer.getvalue())

    @staticmethod
    def read(path: str | PathLike[str]) -> CompressorState:
        """The state in the file of a saved model. The module's docstring has an example."""
        try:
            archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile:
            raise SessionError(
                f"{path} is no .keras file, so it holds no compressor state. DistributedModel.save writes one."
            ) from None
        with archive:
            if MEMBER not in archive.namelist():
                raise SessionError(
                    f"{path} holds no compressor state. DistributedModel.save puts it there, after training with a "
                    "compressor on several replicas; Keras's own save does not."
                )
            content = archive.read(MEMBER)
        with np.load(BytesIO(content), allow_pickle=False) as arrays:
            values = {name: arrays[name] for name in arrays.files}
        return CompressorState(str(values.pop(_STRATEGY)), values)
