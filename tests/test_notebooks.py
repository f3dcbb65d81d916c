"""Notebooks are executed from a clean kernel, in a Jupyter kernel of this Python."""

import contextlib
import io
import re
import runpy
from pathlib import Path
from typing import Any

import keras
import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from tests.support.programs import ROOT

SAID = re.compile(
    r"autodist: ((\w+: )?\d+ per step = |waiting for \d|the \w+( \w+)? of the present fit: |.*[:,] \d+ s so far$)"
)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_notebooks_are_committed_without_outputs():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            assert not cell.get("outputs"), f"{path.name} is committed with outputs; clear them"


def test_the_code_of_a_notebook_runs(tmp_path):
    """In this process, in which TensorFlow is imported already; the long tests run the notebook in a kernel, too."""
    notebook = nbformat.read(ROOT / "notebooks/custom_loop.ipynb", as_version=4)
    program = tmp_path / "custom_loop.py"
    program.write_text("\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code"))
    keras.utils.clear_session()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(program), run_name="__main__")
    assert out.getvalue().count(" of the largest entry") == 2


def run(name: str, folder: Path, kernel: str) -> str:
    """Run a notebook in `folder`, and return what its cells print. No cell may fail, or leave a file there.

    A model whose accuracy is shown has learnt: of three classes it names the right one four times of five. On stderr
    stands only what a training does, which way its data takes, for which machines it waits, and which stage takes long.
    """
    notebook: Any = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    folder.mkdir(exist_ok=True)
    NotebookClient(notebook, timeout=240, kernel_name=kernel, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    lines = [line for output in outputs if output.get("name") == "stderr" for line in output["text"].splitlines()]
    assert not [line for line in lines if not SAID.match(line)], "the notebook's cells wrote to stderr"
    assert {path.name for path in folder.iterdir()} <= {"cluster.yml"}
    printed = "".join(output["text"] for output in outputs if output.get("name") == "stdout")
    assert all(float(shown) > 0.8 for shown in re.findall(r"\baccuracy:? ([0-9.]+)", printed)[-1:])
    return printed


@pytest.mark.parametrize("name", [path.name for path in NOTEBOOKS if path.name != "several_machines.ipynb"])
def test_a_notebook_runs(name, tmp_path, this_python):
    assert run(name, tmp_path / "work", this_python)


def test_the_notebook_of_several_machines_runs(make_network, tmp_path, this_python, monkeypatch):
    network = make_network(2)
    monkeypatch.setenv("HOME", str(network.home))
    (tmp_path / "work").mkdir()
    (tmp_path / "work/cluster.yml").write_text(yaml.safe_dump(network.spec(cpus=[2, 1])))
    printed = run("several_machines.ipynb", tmp_path / "work", this_python)
    assert "Gbit/s, from the row to the column" in printed
    assert printed.count("e-1") >= 4, "the differences from one device"
