"""Every private name of another package that the sources use stands in a table, and in `docs/developers/seams.md`."""

import ast
import configparser
from functools import cache

from autodist_core.seams import table as core_seams
from autodist_core.seams.seam import SUPPORTED
from autodist_keras import seams as keras_seams
from tests.seams.test_uses import BEHAVIOURS, STORED, WRITTEN
from tests.support.programs import ROOT

SOURCES = [
    path for package in ("autodist_core", "autodist_keras") for path in sorted((ROOT / package).rglob("*.py"))
    if not path.name.endswith("_pb2.py")
]
EXAMINED_HERE = (*STORED, *WRITTEN, *BEHAVIOURS)
TABLE = (*keras_seams.TABLE, *core_seams.TABLE, *EXAMINED_HERE)
# Documented, whatever their names look like.
PUBLIC = {"_exit": "os", "_replace": "named tuples", "_fields": "named tuples"}
# Attributes that TensorFlow gives nodes of a graph, and text in tables: no attributes of objects.
NODES = {"_read_only_resource_inputs", "_gradient_op_type", "_class"}


@cache
def trees():
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES]


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names():
    """The private names that the project's own modules and classes define."""
    names = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.update([node.attr] if ast.unparse(node.value) in ("self", "cls") else [])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def private_uses():
    """Private names as attributes of other objects, in getattr and its like, and as the names of hooks."""
    for path, tree in trees():
        if "seams" in (path.stem, path.parent.name):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                if ast.unparse(node.value) not in ("self", "cls"):
                    yield path, node.lineno, node.attr
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "hook"):
                named = node.args[1] if len(node.args) > 1 else None
                if isinstance(named, ast.Constant) and is_private(named.value):
                    yield path, node.lineno, named.value
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                key = node.slice.value
                yield from [(path, node.lineno, key)] if isinstance(key, str) and is_private(key) else []


def test_every_private_use_is_listed():
    listed = {seam.name for seam in TABLE} | set(PUBLIC) | own_names()
    written = " ".join(seam.name for seam in TABLE)
    unlisted = [
        f"{path.relative_to(ROOT)}:{line} {name}" for path, line, name in private_uses()
        if name not in listed and not (name in NODES and (name in written or name == "_class"))
    ]
    assert not unlisted, "list what these rest on in seams.py: " + ", ".join(unlisted)


def test_private_uses_are_found():
    found = {name for _, _, name in private_uses()}
    assert {"_moments", "_compile_loss", "_flat_losses", "_get_function", "_value"} <= found


def modules_used():
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((path, f"{node.module}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.Attribute):
                yield path, ast.unparse(node)


def test_every_private_module_is_listed():
    listed = [seam.owner for seam in TABLE] + [f"{seam.owner}.{seam.name}" for seam in TABLE]
    private = ("keras.src", "tensorflow.python", "tf.python")
    used = [(path, name) for path, name in modules_used() if name.startswith(private)]
    assert used, "the server's module is imported where it starts"
    for path, name in used:
        assert name in listed, f"{path.relative_to(ROOT)} uses {name}: list it in seams.py"


def test_no_seam_has_a_default():
    """A name that is missing is an error: nobody asks whether it is there, or takes something else."""
    # Keras's models have some names of a function's graph too, as public ones.
    of_graphs = {seam.name for seam in TABLE if seam.owner.endswith(".FuncGraph")} - {"inputs", "outputs", "variables"}
    names = {seam.name for seam in TABLE if is_private(seam.name)} | of_graphs
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr") and len(node.args) > 1:
                asked = node.args[1]
                assert not (isinstance(asked, ast.Constant) and asked.value in names), f"{path}, line {node.lineno}"


def test_supported_versions_are_those_of_setup_cfg():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    bounds = {}
    for line in setup["options"]["install_requires"].split():
        package, _, versions = line.partition(">=")
        lower, _, upper = versions.partition(",<")
        if package in SUPPORTED:
            major, minor = (int(part) for part in upper.split("."))
            bounds[package] = tuple(int(part) for part in lower.split(".")[:2]), (major, minor - 1)
    assert dict(SUPPORTED) == bounds


def page():
    """What docs/developers/seams.md says: the seams by what rests on them."""
    lines = [
        "# Seams", "",
        "These are the names and behaviours of other packages that autodist-keras uses although they are not public",
        "API. Whether the names are there is checked when the first model is wrapped; a `SeamError` lists everything",
        "that is missing. What has *at use* is checked when a step shows it. *Tested* means that the tests alone show",
        "it, on each version that `setup.cfg` allows. `python -m tests.seams.test_names` writes this page from the",
        "tables in `autodist_core/seams/table.py`, `autodist_keras/seams.py` and `tests/seams/test_uses.py`.", "",
    ]
    for title, ours in (("Keras", True), ("TensorFlow and Python", False)):
        lines += [f"## {title}", "", "| what rests on it | names |"]
        lines.append("|---|---|")
        resting: dict[str, list[str]] = {}
        for seam in TABLE:
            if seam.owner.startswith("keras") == ours:
                label = seam.label.strip("'\"")
                shown = label if " " in label else f"`{label}`"
                late = " *at use*" if seam.at_use else " *tested*" if seam in EXAMINED_HERE else ""
                resting.setdefault(seam.rests, []).append(shown + late)
        lines += [f"| {rests} | {'; '.join(names)} |" for rests, names in resting.items()]
        lines.append("")
    return "\n".join(lines)


def test_the_page_shows_the_tables():
    assert (ROOT / "docs/developers/seams.md").read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    print(page(), end="")
