"""docs/keras.md lists every argument of Keras's training methods and every callback of the Keras that is installed.

It also has every public name that a model has beyond a layer.
"""

import inspect
import re

import keras
import pytest

from tests.support.programs import ROOT

PAGE = (ROOT / "docs" / "keras.md").read_text(encoding="utf-8")
METHODS = ("compile", "fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
VERDICTS = {"equal", "refused", "differs", "Keras's error"}


def rows(text: str) -> list[list[str]]:
    """The cells of the tables' lines, without heads."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in cells] for cells in lines if cells[1].strip() != "on replicas"]


def listed(table: str) -> set[str]:
    """The names in the first column of the table behind a comment."""
    _, found, text = PAGE.partition(f"<!-- {table} -->\n\n")
    assert found, f"docs/keras.md has no table of {table}"
    return {name for cells in rows(text.partition("\n\n")[0]) for name in re.findall(r"`(\w+)`", cells[0])}


@pytest.mark.parametrize("method", METHODS)
def test_every_argument_is_listed(method: str):
    arguments = set(inspect.signature(getattr(keras.Model, method)).parameters) - {"self"}
    assert arguments - listed(method) == set(), f"docs/keras.md does not say what becomes of these of {method}"


def test_every_callback_is_listed():
    callbacks = {name for name, value in vars(keras.callbacks).items() if inspect.isclass(value)}
    assert callbacks - listed("callbacks") == set(), "docs/keras.md does not say what these do on replicas"


def test_every_name_of_a_model_is_listed():
    names = {name for name in set(dir(keras.Model)) - set(dir(keras.Layer)) if not name.startswith("_")}
    listed = {name for cells in rows(PAGE) for name in re.findall(r"\w+", " ".join(re.findall("`[^`]+`", cells[0])))}
    assert names - listed - set(METHODS) == set(), "docs/keras.md does not say what becomes of these"


def test_each_line_has_a_verdict_and_files_that_exist():
    for cells in rows(PAGE):
        assert len(cells) == 4 and cells[1] in VERDICTS, cells
        files = re.findall(r"`(\S+\.py)`", cells[3])
        assert files or cells[1] == "Keras's error", cells
        for file in files:
            assert (ROOT / "tests" / ("" if "/" in file else "front") / file).exists(), file
