"""The state of compressors outside a session: between two of them, and in a saved model's file.

A `.keras` file is a zip archive of which Keras reads the members that it knows; this state is one more.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from os import PathLike
from typing import Any, cast

import numpy as np

from autodist_core.errors import SessionError

MEMBER = "autodist/compressor_state.npz"
_STRATEGY = "strategy"

_log = logging.getLogger("autodist")


@dataclass(frozen=True, eq=False)
class CompressorState:
    """What the compressors of a strategy kept: residuals and directions, by name and replica."""

    strategy: str
    """The strategy's id: another one has no use for these values."""
    values: Mapping[str, np.ndarray]

    def for_strategy(self, strategy: str) -> Mapping[str, np.ndarray]:
        """The values for a session of that strategy; none, and a line in the log, if they are another's."""
        if strategy == self.strategy or not self.values:
            return self.values
        _log.warning(
            "The compressors start anew: what they kept was strategy %s's, and this is strategy %s.",
            self.strategy, strategy,
        )
        return {}

    def write(self, path: str | PathLike[str]) -> None:
        """Add the state to a saved model; says so in the log if the file is none that can hold it."""
        if not zipfile.is_zipfile(path):
            _log.warning("%s holds no compressor state; save to a .keras file to keep it.", path)
            return
        buffer, arrays = BytesIO(), {_STRATEGY: np.array(self.strategy), **self.values}
        np.savez(buffer, **cast(Any, arrays))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(MEMBER, buffer.getvalue())

    @staticmethod
    def read(path: str | PathLike[str]) -> CompressorState:
        """The state in a saved model."""
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
