"""The documentation is executed: README.md block by block, and the notebooks in a Jupyter kernel of this Python."""

import contextlib
import dataclasses
import io
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from nbclient import NotebookClient

from autodist_core.strategy import BUILDERS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


class Block(NamedTuple):
    language: str
    line: int  # of its first line of text in README.md
    text: str


def blocks():
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        yield Block(match[1], README.count("\n", 0, match.start(2)) + 1, match[2])


@pytest.mark.oldest
def test_readme_does_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "readme"}, ""
    for block in blocks():
        where = f"README.md, line {block.line}"
        if block.language == "yaml":
            name = re.match(r"# (\S+\.yml)\n", block.text)
            assert name, f"{where}: the first line of a yaml block names its file, as in '# cluster.yml'"
            Path(name[1]).write_text(block.text)
        elif block.language == "python":
            # As many empty lines before the code as the README has, so that a traceback's line is the README's.
            code = compile("\n" * (block.line - 1) + block.text, str(ROOT / "README.md"), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            printed = out.getvalue()
        elif block.language == "text":
            assert block.text == printed, f"{where}: the python block before it prints something else"
        else:
            assert block.language == "console", f"{where}: unknown kind of block {block.language!r}"


def test_readme_has_every_option_of_every_builder():
    rows = re.findall(r"^\| `(\w+)\((.*?)\)`(?: as `(\w+)`)?(?: and `(\w+)`)? \|", README, re.MULTILINE)
    own = {name: eval(f"dict({options.replace(', ...', '').replace('...', '')})") for name, options, *_ in rows}
    assert own.keys() == BUILDERS.keys()
    for name, _, *others in rows:
        written = {option: default for each in (name, *filter(None, others)) for option, default in own[each].items()}
        assert written == {each.name: each.default for each in dataclasses.fields(BUILDERS[name])}, name


def test_readme_names_commands_that_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", README + (ROOT / "CONTRIBUTING.md").read_text()))
    assert {"demo", "test"} <= named <= targets


def test_links_lead_somewhere():
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_readme_has_a_line_for_each_file():
    listing = re.search(r"<!-- tree -->\n```\n(.*?)```\n<!-- /tree -->", README, re.DOTALL)[1]
    # A line is 'path  what it is' or 'path, path  what they are'; one that begins with spaces goes on.
    starts = re.findall(r"^([^\s,]+(?:, [^\s,]+)*)", listing, re.MULTILINE)
    listed = {name for start in starts for name in start.split(", ")}
    missing = {name for name in listed if not (ROOT / name).exists()}
    assert not missing, "listed in README.md, and not there"
    files = {
        path.relative_to(ROOT).as_posix()
        for package in ("autodist_core", "autodist_keras")
        for path in (ROOT / package).rglob("*.py")
        if not path.name.endswith("_pb2.py") and path.name != "__init__.py"
    }
    folders = tuple(name for name in listed if name.endswith("/"))
    unlisted = {name for name in files - listed if not name.startswith(folders)}
    assert not unlisted, "there, and not listed in README.md"


def test_there_is_a_notebook():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path, tmp_path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs"), f"{path.name} is committed with outputs; clear them"

    # The kernel starts from a spec of this Python, whatever kernels the person who runs the test has installed.
    kernels = tmp_path / "kernels" / "this-python"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text(
        json.dumps(
            {
                "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                "display_name": "This Python",
                "language": "python",
            }
        )
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    for variable in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    work = tmp_path / "work"
    work.mkdir()
    place = {"metadata": {"path": str(work)}}
    NotebookClient(notebook, timeout=240, kernel_name="this-python", resources=place).execute()
    errors = [output for cell in notebook.cells for output in cell.get("outputs", ()) if output.get("name") == "stderr"]
    assert not errors, "the notebook's cells wrote to stderr"
