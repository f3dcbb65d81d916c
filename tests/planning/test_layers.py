"""A stage imports earlier stages only, planning needs no TensorFlow, and words: read from every module's source."""

import ast
import re
import subprocess
import sys
from functools import cache

import pytest

from tests.support.programs import ROOT

# The stages of autodist_core, in the order of the flow.
STAGES = (
    "errors", "log", "give_back", "interrupts", "proto", "resource_spec", "seams", "step", "strategy", "plan",
    "capture", "kernel", "cluster", "forecast", "auto", "runtime", "training", "reports", "loops", "command_line",
    "__main__",
)  # fmt: skip
PLANNING = STAGES[: STAGES.index("capture")]
# Within a folder, groups of its files in the order in which they may import each other: a group imports itself and
# earlier groups. A file that is not named belongs to the last group.
INSIDE = {
    "autodist_core.seams": ("seam", "table"),
    "autodist_core.step": (
        "grouping", "reaching", "op_types", "same", "values", "serialization", "graph_item", "naming", "ports",
        "graph_check", "editor", "enclosing", "draws", "index", "union",
    ),
    "autodist_core.strategy": (
        "partition", "synchronizers", "wire", "compiled", "strategy", "builder", "factor_rows", "options", "checker",
        "compiler", "base",
    ),
    "autodist_core.capture": ("traversal", "traced", "tape", "linearity", "refuse", "rewrite"),
    "autodist_core.kernel": (
        "analysis", "splitting", "partitioner", "placement", "added_variables", "refuse", "draft", "packing",
        "random_streams", "units", "kernel", "passes",
    ),
    "autodist_core.forecast": ("liveness", "tensors", "needs"),
    "autodist_core.auto": ("profiles", "of_step", "charges", "prediction", "choosing", "improving"),
    "autodist_core.training": (
        "entries", "homes", "patience", "devices", "settings", "in_graphs", "watching", "first_values",
        "life", "state", "compressor_state", "choices", "sessions", "measured", "training", "announcing", "steps",
    ),
    "autodist_core.loops": (
        "calls", "variables", "engine", "gradients", "nested_markers", "combining", "inside", "tracing",
        "replica", "traced_function", "function", "autodist", "distribute",
    ),
    "autodist_core.loops.calls": ("as_written", "outer_tapes", "graph_mode", "arguments"),
    "autodist_core.loops.gradients": ("own_gradients", "summed_again", "updates"),
    "autodist_core.loops.combining": (
        "side_state", "recomputed", "joining", "totals", "own_writes", "updates_by_hand", "deciding",
    ),
    "autodist_core.capture.gradients": ("terms", "recording", "weighing"),
    "autodist_core.capture.batch_axis": ("states", "rules", "replicas", "given", "step_results", "flow"),
    "autodist_core.capture.batch_axis.states": (
        "state", "reduced", "finding", "constants", "operations", "layout", "sizes", "places", "reshaping",
        "slice_bounds", "rounds",
    ),
    "autodist_core.capture.batch_axis.rules": (
        "by_example", "arithmetic", "slices", "picking", "products", "counting", "ragged", "along_axes", "moving",
        "inner", "lists", "writes", "table",
    ),
    "autodist_keras": ("seams", "checks", "capture", "training", "reports"),
}  # fmt: skip
# The modules that may import TensorFlow although they stand in a planning stage, and those that read messages.
EDITING = tuple(
    f"autodist_core.step.{name}" for name in ("naming", "ports", "casts", "editor", "enclosing", "draws", "index")
)
READING_MESSAGES = (
    "autodist_core.step.serialization", "autodist_core.step.graph_item", "autodist_core.strategy.strategy",
)  # fmt: skip
# What a strategy's message has, and its frozen values have not.
OF_A_STRATEGY = {"node_config", "graph_config", "PSSynchronizer", "AllReduceSynchronizer"}
# The folders of autodist_core.cluster in the order of the flow, each with the folders that it may import too.
CLUSTER = {
    "protocol": (),
    "on_node": ("protocol",),
    "ssh": (),
    "agents": ("protocol", "ssh"),
    "doctor": ("protocol", "agents"),
    "chief": ("protocol", "agents", "doctor"),
}
# What imports TensorFlow in autodist_core.cluster.
WITH_TENSORFLOW = ("autodist_core.cluster.on_node.light_tensorflow", "autodist_core.cluster.on_node.server")


def modules(package):
    return [path for path in sorted((ROOT / package).rglob("*.py")) if not path.name.endswith("_pb2.py")]


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path):
    """The dotted names a module imports, those within functions and for type checkers included."""
    names = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import; this test reads absolute ones"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def stage(dotted):
    """The stage of a module of autodist_core; None for the package itself."""
    name = dotted.removeprefix("autodist_core").removeprefix(".").split(".")[0]
    return STAGES.index(name) if name else None


def own_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


ALL = [path for package in ("autodist_core", "autodist_keras") for path in modules(package)]
CORE = [path for path in ALL if own_name(path).startswith("autodist_core")]


def test_there_are_modules():
    assert len(CORE) > 15


def test_a_stage_imports_earlier_stages_only():
    for path in CORE:
        relative, own = str(path.relative_to(ROOT)), own_name(path)
        assert own == "autodist_core" or own.split(".")[1] in STAGES, f"{own} is no stage: say in STAGES where it is"
        for name in imports(path):
            assert not name.startswith("autodist_keras") and name.split(".")[0] != "keras", f"{relative} imports {name}"
            if not name.startswith("autodist_core"):
                continue
            if own == "autodist_core":
                # These are imported when somebody asks for them: `import autodist_core` does without TensorFlow.
                stages = (*PLANNING, "capture", "loops")
                assert name.split(".")[1] in stages, f"{relative} imports {name}, which is not of the planning half"
            else:
                assert stage(name) <= stage(own), f"{relative} imports {name}, a later stage"


def is_module(folder, dotted):
    """Whether a dotted name below a folder begins with a module of it, rather than a name of its `__init__`."""
    first = ROOT.joinpath(*folder.split("."), dotted.removeprefix(f"{folder}.").split(".")[0])
    return first.is_dir() or first.with_suffix(".py").exists()


def group(folder, dotted):
    """The position of a module among the groups of its folder; None for the folder itself."""
    first, *_ = dotted.removeprefix(folder).removeprefix(".").split(".")
    groups = INSIDE[folder]
    return None if not first else groups.index(first) if first in groups else len(groups)


def test_a_group_of_a_folder_imports_earlier_groups_only():
    for path in ALL:
        own = own_name(path)
        for folder in INSIDE:
            if not own.startswith(f"{folder}."):
                continue
            for name in imports(path):
                if name.startswith(f"{folder}.") and is_module(folder, name):
                    assert group(folder, name) <= group(folder, own), f"{own} imports {name}, a later group of {folder}"


def test_what_stays_at_the_edge():
    for path in ALL:
        own = own_name(path)
        reads_messages = own in READING_MESSAGES
        for name in imports(path):
            if name.startswith(("google.protobuf", "autodist_core.proto")):
                assert reads_messages, f"{own} imports {name}; only the serialisers do"
            if name.startswith("tensorflow") and own.startswith(tuple(f"autodist_core.{stage}" for stage in PLANNING)):
                # The captured step's value reads TensorFlow's messages, for those who ask for its graph.
                assert own in (*EDITING, "autodist_core.step.graph_item"), f"{own} imports {name}; planning may not"
        if not reads_messages:
            inside = {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)} & OF_A_STRATEGY
            assert not inside, f"{own} reads or writes {inside} of a strategy's message; take its nodes"


def folder(dotted):
    """The folder of autodist_core.cluster in which a module lies; "" for the package itself and None elsewhere."""
    if not f"{dotted}.".startswith("autodist_core.cluster."):
        return None
    return dotted.removeprefix("autodist_core.cluster").removeprefix(".").split(".")[0]


def test_a_folder_of_the_cluster_imports_earlier_folders_only():
    for path in filter(lambda path: folder(own_name(path)) is not None, CORE):
        own = own_name(path)
        assert folder(own) in ("", *CLUSTER), f"{own} is in no folder of CLUSTER: say there where it stands in the flow"
        for name in imports(path):
            if folder(name) is not None:
                allowed = (folder(own), *CLUSTER[folder(own)]) if folder(own) else ()
                assert folder(name) in allowed, f"{own} imports {name}; its folder may not"
            if name.split(".")[0] == "tensorflow":
                assert own in WITH_TENSORFLOW, f"{own} imports {name}; only {' and '.join(WITH_TENSORFLOW)} do"


PACKAGES = [path for path in ALL if path.name == "__init__.py"]
# A module's name in a docstring: in backticks, or at the begin of a row of a table.
NAMED = re.compile(r"(?:`|^ {4}|\()([a-z_]\w*)\b", re.MULTILINE)
SUBJECT = re.compile(r"(?:^|\.\s+|- )`{1,2}([a-z_]\w*)/?`{1,2}(?=[ :,])|^ {4}([a-z_]\w*)  +\S", re.MULTILINE)


def test_a_package_that_lists_its_modules_lists_all_of_them_and_no_other():
    """A docstring that names half of the modules lists them."""
    for path in PACKAGES:
        said = ast.get_docstring(tree(path)) or ""
        found = {each.parent if each.name == "__init__.py" else each for each in modules(path.parent.relative_to(ROOT))}
        inside = {each.stem for each in found if each.parent == path.parent} - {"__main__"}
        named = inside & set(NAMED.findall(said))
        if 2 * len(named) >= len(inside) > 0:
            assert not inside - named, f"{own_name(path)} has these modules, and its docstring does not name them"
            others = {name for match in SUBJECT.findall(said) for name in match if name} - inside
            assert not others, f"the docstring of {own_name(path)} names these, and they are no modules of it"


# The stages of which the Keras front imports public names only: what the `__init__` of a folder names.
BY_PUBLIC_NAMES = ("autodist_core.capture", "autodist_core.kernel", "autodist_core.runtime", "autodist_core.training")


def test_the_front_imports_no_inside_of_earlier_stages_and_nothing_of_the_other_front():
    for path in filter(lambda path: path not in CORE, ALL):
        for name in imports(path):
            if name.startswith(BY_PUBLIC_NAMES):
                folder = ROOT.joinpath(*name.split(".")[:-1])
                assert folder.is_dir(), f"{own_name(path)} imports {name}, an inside of its stage"
            assert not name.startswith("autodist_core.loops"), f"{own_name(path)} imports {name}, of the other front"
            if name.startswith("autodist_core.cluster."):
                allowed = ("autodist_core.cluster.chief.", "autodist_core.cluster.on_node.standby.")
                assert name.startswith(allowed), f"{own_name(path)} imports {name}"


# What changes a NodeDef: assigning to a part of it, and calling these methods of a part of it.
CHANGING = {"CopyFrom", "MergeFrom", "append", "extend", "add", "remove", "insert", "pop", "Clear", "ClearField"}
PARTS = {"attr", "input"}


def is_part_of_a_node(node):
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and node.attr in PARTS:
            return True
        node = node.value
    return False


def changed_nodes(module):
    """The lines at which a module changes what looks like a NodeDef, or makes one."""
    for node in ast.walk(module):
        targets = list(node.targets) if isinstance(node, ast.Assign | ast.Delete) else []
        targets += [node.target] if isinstance(node, ast.AugAssign) else []
        changes = any(is_part_of_a_node(target) for target in targets)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changes |= node.func.attr in CHANGING and is_part_of_a_node(node.func.value)
            changes |= node.func.attr == "NodeDef"
        if changes:
            yield node.lineno


def test_only_the_editor_changes_nodes():
    for path in ALL:
        own, lines = own_name(path), list(changed_nodes(tree(path)))
        if own == "autodist_core.step.editor":
            assert lines, "the editor changes nodes, and this test sees it"
        else:
            assert not lines, f"{own} changes a NodeDef at line {lines[:1]}; let the editor do it"


def test_modules_stay_small():
    for path in ALL:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, own_name(path)


SEVERAL = re.compile(
    r" (?:training |sparse |measured )?"
    r"(replicas|steps|links|nodes|machines|examples|variables|rounds|gradients|parameters|buckets|GPUs)\b"
)
NEVER_ONE = {
    "count nodes", "before machines", "len(nodes) nodes", "len(stuck) nodes", "most replicas", "replicas replicas",
    "count replicas", "times nodes", "times variables",
}


def counted(tree):
    """What texts have before the name of several things, and that name."""
    for text in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
        for number, words in zip(text.values, text.values[1:], strict=False):
            things = SEVERAL.match(str(getattr(words, "value", "")))
            if things and isinstance(number, ast.FormattedValue) and isinstance(words, ast.Constant):
                yield f"{ast.unparse(number.value)}{things[0]}"


def test_one_thing_is_not_called_several():
    """`amount` words a number. The name of several things stands only behind a number that is never one."""
    found, endings = set(), []
    for path in ALL:
        found.update(counted(tree(path)))
        endings += [path.name for _ in re.findall("else ['\"]s['\"]", path.read_text(encoding="utf-8"))]
    assert (found, endings) == (NEVER_ONE, [])


PLAN_EVERYTHING = """
import sys
import autodist_core
from autodist_core.plan import Plan, plan_table
from tests.planning import cases
for make in cases.MODELS.values():
    for cluster in cases.CLUSTERS:
        item, spec = make(), cases.cluster(cluster)
        for builder in cases.builders().values():
            strategy = autodist_core.Strategy.deserialize(builder.build(item, spec).serialize())
            Plan(plan_table(autodist_core.StrategyCompiler(item, spec).compile(strategy), item))
autodist_core.GraphItem.deserialize(item.serialize())
autodist_core.ResourceSpec()
heavy = ("tensorflow", "keras", "numpy", "autodist_core.kernel")
print([name for name in heavy if name in sys.modules])
"""


def test_planning_imports_no_tensorflow():
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PLAN_EVERYTHING], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("name, needs", [("on_node.agent", "protocol"), ("on_node.standby", "protocol"), ("ssh", "")])
def test_what_runs_on_a_node_or_reaches_it_stays_light(name, needs):
    """An agent imports TensorFlow when all nodes have reached each other, and never what only the chief runs."""
    code = f"import sys, autodist_core.cluster.{name}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert not {"tensorflow", "keras", "numpy"} & loaded
    later = [f"autodist_core.{stage}" for stage in STAGES[STAGES.index("capture"):] if stage != "cluster"]
    later += [f"autodist_core.cluster.{folder}" for folder in CLUSTER if folder not in (needs, name.split(".")[0])]
    assert not [module for module in loaded if module.startswith(tuple(later))]
