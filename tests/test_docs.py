"""The documentation is executed: README.md and docs/ block by block. `test_notebooks.py` executes the notebooks."""

import ast
import configparser
import contextlib
import dataclasses
import importlib.metadata
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import pytest

from autodist_core.strategy import BUILDERS
from tests.support.programs import ROOT, module_of

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
COMPLETE = {"README.md", "docs/large-models.md", "docs/start.md"}
"""Pages that can be run as they are."""
SET_BY_A_SCHEDULER = {
    "docs/schedulers.md": {
        "TF_CONFIG": """{
            "cluster": {"chief": ["10.0.0.1:8888"], "worker": ["10.0.0.2:8888"]},
            "task": {"type": "chief", "index": 0}
        }""",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "node[1-4]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
}
"""The environment variables that a scheduler sets before the program of a page runs."""
TEXT = ("text", "{ .text .wrap }")
"""What the python block before prints; in the second form, the site wraps it."""
OTHERS = DOCS / "with-other-packages.md"
"""A page with parts of the programs in examples/real, which run where their packages are installed."""
PACKAGES = ("autodist_core", "autodist_keras")


class Block(NamedTuple):
    language: str
    line: int  # of its first line of text in the page
    text: str
    marked: str  # the comment right before it


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in re.finditer(r"^(?:<!-- (.*?) -->\n)?( *)``` ?(.*)\n((?:.*\n)*?)\2```$", text, re.MULTILINE):
        yield Block(match[3], text.count("\n", 0, match.start(4)) + 1, match[4], match[1] or "")


def label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def write_file(block: Block, where: str) -> None:
    name = re.match(r"# (\S+\.yml)\n", block.text)
    assert name, f"{where}: the first line of a yaml block names its file, as in '# cluster.yml'"
    Path(name[1]).write_text(block.text)


def execute(block: Block, page: Path, names: dict) -> str:
    """Run a python block, and return what it prints."""
    # As many empty lines before the code as the page has, so that a traceback's line is the page's.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def starting_names(page: Path) -> dict:
    """What the snippets of a page begin with: what docs/index.md says, but for pages that are complete programs."""
    keras.utils.clear_session()  # layers are called as in a new process
    names = {"__name__": page.stem}
    if label(page) not in COMPLETE and label(page) != "docs/index.md":
        for block in blocks(DOCS / "index.md"):
            if block.marked == "preamble" and block.language == "yaml":
                write_file(block, "docs/index.md")
            elif block.marked == "preamble":
                execute(block, DOCS / "index.md", names)
    return names


def _case(page: Path):
    return pytest.param(page, id=label(page), marks=[pytest.mark.oldest] * (label(page) == "README.md"))


def is_of_a_program(block: Block) -> bool:
    return any(plainly(block.text) in plainly(path.read_text()) for path in (ROOT / "examples/real").glob("*.py"))


@pytest.mark.parametrize("page", [_case(page) for page in PAGES])
def test_a_page_does_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("autodist"), "level", logging.getLogger("autodist").level)
    for name, value in SET_BY_A_SCHEDULER.get(label(page), {}).items():
        monkeypatch.setenv(name, value)
    run = [block for block in blocks(page) if block.language == "python"]
    names, printed = starting_names(page) if run else {}, ""
    try:
        for block in blocks(page):
            where = f"{label(page)}, line {block.line}"
            if block.language == "yaml":
                write_file(block, where)
            elif block.language == "python" and page == OTHERS and is_of_a_program(block):
                pass  # test_real_examples.py runs the program
            elif block.language == "python":
                printed = execute(block, page, names)
            elif block.language in TEXT:
                assert block.text == printed, f"{where}: the python block before it prints something else"
            elif block.language == "{ .python }":
                assert block.text.strip().startswith("--8<--"), f"{where}: only a file that is included is not run"
            else:
                kinds = ("console", "message", "tree")
                assert block.language in kinds, f"{where}: unknown kind of block {block.language!r}"
    finally:
        for value in list(names.values()):
            if type(value).__name__ in ("DistributedModel", "AutoDist"):
                value.close()


def test_every_fence_is_a_block_that_was_read():
    for page in PAGES:
        fences = re.findall(r"^ *(?:```|~~~)", page.read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(list(blocks(page))), label(page)


def test_every_option_of_every_builder_is_in_the_table():
    table = (DOCS / "strategies.md").read_text()
    rows = re.findall(r"^\| `(\w+)\((.*?)\)`(?: as `(\w+)`)?(?: and `(\w+)`)? \|", table, re.MULTILINE)
    own = {name: eval(f"dict({options.replace(', ...', '').replace('...', '')})") for name, options, *_ in rows}
    assert own.keys() == BUILDERS.keys()
    for name, _, *others in rows:
        written = {option: default for each in (name, *filter(None, others)) for option, default in own[each].items()}
        assert written == {each.name: each.default for each in dataclasses.fields(BUILDERS[name])}, name


def test_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_pages_name_the_versions_that_fit():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    required = f"python{setup['options']['python_requires']}\n{setup['options']['install_requires']}"
    found = re.findall(r"^(\w+)>=(\d+)\.(\d+)[.\d]*,<(\d+)\.(\d+)$", required, re.MULTILINE)
    bounds = {name: f"{first}.{minor} to {last}.{int(beyond) - 1}" for name, first, minor, last, beyond in found}
    readme = (ROOT / "README.md").read_text()
    assert f"Python {bounds['python']}" in readme
    assert f"Keras {bounds['keras']} and TensorFlow {bounds['tensorflow']}" in readme
    (cuda,) = re.findall(r"nvidia-cuda-runtime-cu(\d+)", " ".join(importlib.metadata.requires("tensorflow") or ()))
    row = f"| {bounds['python']} | {bounds['keras']} | {bounds['tensorflow']} | {cuda}, by"
    assert row in (DOCS / "start.md").read_text()


def test_pages_say_where_the_names_of_their_snippets_come_from():
    begin = re.findall(r"^## (.*)", (DOCS / "index.md").read_text().partition("<!-- preamble -->")[0], re.MULTILINE)[-1]
    link = f"(index.md#{begin.lower().replace(' ', '-')})"
    for page in PAGES:
        runs = any(block.language == "python" for block in blocks(page))
        if runs and label(page) not in {*COMPLETE, "docs/index.md"}:
            before = page.read_text().partition("```")[0].partition("\n## ")[0]
            assert "The Python snippets of this page continue" in before and link in before, label(page)


def test_pages_name_commands_that_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [ROOT / "CONTRIBUTING.md", *PAGES]
    text = "\n".join(page.read_text() for page in pages)
    named = set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.MULTILINE))
    assert {"demo", "test", "docs"} <= named <= targets
    in_readme = set(re.findall(r"\bmake ([a-z][\w-]*)", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= in_readme


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks/README.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{label(page)} links to {target}"


def test_the_tree_has_a_line_for_each_file():
    (listing,) = (block.text for block in blocks(DOCS / "developers/tree.md") if block.marked == "tree")
    # A line is 'path  what it is' or 'path, path  what they are'; one that begins with spaces goes on.
    starts = re.findall(r"^([^\s,]+(?:, [^\s,]+)*)", listing, re.MULTILINE)
    listed = {name for start in starts for name in start.split(", ")}
    missing = {name for name in listed if not (ROOT / name).exists()}
    assert not missing, "listed in docs/developers/tree.md, and not there"
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.name.endswith("_pb2.py") and path.name != "__init__.py"
    }
    folders = tuple(name for name in listed if name.endswith("/"))
    unlisted = {name for name in files - listed if not name.startswith(folders)}
    assert not unlisted, "there, and not listed in docs/developers/tree.md"


def test_the_gallery_has_a_row_for_each_model():
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "gallery.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(path.stem for path in (ROOT / "examples/gallery").glob("[a-z]*.py"))


def test_the_architecture_names_files_and_kernels_that_exist():
    page = (DOCS / "developers/architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:/|\.py))`", page))
    roots = (ROOT, *(ROOT / package for package in PACKAGES))
    missing = {name for name in named if not any((root / name).exists() for root in roots)}
    assert named and not missing, "named in docs/developers/architecture.md, and not there"
    pipeline = (ROOT / "autodist_core/kernel/pipeline.py").read_text()
    kernels = re.findall(r"(\w+)\(\)", re.search(r"^PIPELINE.*?^\)", pipeline, re.MULTILINE | re.DOTALL)[0])
    table = page.partition("## The kernels")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == kernels


def test_pictures_are_what_the_script_draws():
    drawn = module_of(DOCS / "pictures.py").pictures()
    measured = "bench.svg"  # drawn by benchmarks/picture.py
    files = {path.name: path.read_text() for path in (DOCS / "pictures").iterdir() if path.name != measured}
    assert files == drawn, "run python docs/pictures.py"


def test_the_glossary_has_every_term_once_and_in_order():
    terms = re.findall(r"^\*\*(.+?)\*\*", (DOCS / "developers/glossary.md").read_text(), re.MULTILINE)
    assert terms == sorted(set(terms), key=str.lower)


# Messages that pages quote ------------------------------------------------------------------------------------------


def words_of(node: ast.expr) -> str:
    """The text of a string in source code, with '…' for what is put in."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"%[ds]|\{\w+(:g)?\}", "…", text)
        case ast.JoinedStr(values=parts):
            return "".join(words_of(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return words_of(left) + words_of(right)
        case _:
            return "…"


def plainly(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def trees() -> Iterator[ast.AST]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if not path.name.endswith("_pb2.py"):
                yield ast.parse(path.read_text())


def test_messages_that_pages_quote_are_those_of_the_source():
    said = {
        plainly(words_of(node))
        for tree in trees()
        for parent in ast.walk(tree)
        if not isinstance(parent, ast.Expr)  # whose string is a docstring
        for node in ast.iter_child_nodes(parent)
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)
    }
    unsaid = [
        f"{label(page)}, line {block.line}: {part}"
        for page in PAGES
        for block in blocks(page)
        if block.language == "message"
        for part in map(plainly, block.text.split("\n\n"))
        if not any(part in text for text in said)
    ]
    assert not unsaid, "quoted, and said by no module"


def test_every_refused_step_is_explained():
    quoted = [
        plainly(part)
        for block in blocks(DOCS / "refused.md")
        if block.language == "message"
        for part in block.text.split("\n\n")
    ]
    unexplained = []
    for tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id="CaptureError" | "NotYetError"), args=[text, *_]):
                    said = plainly(words_of(text))
                case ast.Call(func=ast.Attribute(attr="_refuse"), args=[text]):
                    said = plainly(words_of(text))
                case _:
                    continue
            if said != "…" and not any(part in said for part in quoted):
                unexplained.append(said)
    assert not unexplained, "refused, and not in docs/refused.md"
