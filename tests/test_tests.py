"""The tests themselves: each asserts something, compares two things, and looks at nothing private of the product."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("*.py"))
ASSERTS = re.compile(r"assert|raises$|warns$|fail$|until$|check$")
"""Calls that fail by themselves: of NumPy, of pytest, of tests/support, and the check of a golden text."""

PRIVATE = re.compile(r"(?<![\w.])(front|dm|wrapper|session|step|other|hosts\.front)\._(?!_)\w+|\._driver\b")

LOOK_INSIDE = {
    "test_tests.py": "names what it looks for",
    "kernel/test_combine.py": "sets each replica's copy of a variable, which a session does for all at once",
    "runtime/test_session.py": "interrupts a close at the moment when it has told the replicas to end",
}
"""Files that look at something private, and why."""


def name_of(path: Path) -> str:
    return str(path.relative_to(HERE))


@cache
def tree(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def called(function: ast.AST, methods: bool = True) -> set[str]:
    """The names of the functions that a function calls, and the last names of methods and of what is in modules."""
    targets = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {getattr(target, "id", getattr(target, "attr", "") if methods else "") for target in targets}


def asserting() -> set[str]:
    """The names of all functions here that assert, by themselves or by a function here that they call."""
    calls: dict[str, set[str]] = {}
    found = set()
    for function in (each for path in FILES for each in functions(tree(path))):
        calls.setdefault(function.name, set()).update(called(function, methods=False))
        asserts = any(isinstance(node, ast.Assert) for node in ast.walk(function))
        if asserts or any(map(ASSERTS.match, called(function))):
            found.add(function.name)
    while more := {name for name, targets in calls.items() if name not in found and targets & found}:
        found |= more
    return found


TESTS = [path for path in FILES if path.name.startswith("test_")]


def test_every_test_asserts_something():
    known = asserting()
    silent = [
        f"{name_of(path)}::{function.name}"
        for path in TESTS for function in functions(tree(path))
        if function.name.startswith("test_") and function.name not in known
    ]  # fmt: skip
    assert silent == []


def compared(node: ast.AST) -> list[ast.expr]:
    """The two sides of an equality, or the first two arguments of a function that asserts one."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.Is, ast.LtE, ast.GtE)):
        return [node.left, node.comparators[0]]
    if isinstance(node, ast.Call) and any(name.startswith("assert_") for name in called(ast.Expr(node))):
        return node.args[:2]
    return []


def test_nothing_is_compared_with_itself():
    """Two calls of one function may differ, and are compared where a training must repeat."""
    for path in TESTS:
        for node in ast.walk(tree(path)):
            sides = compared(node)
            if len(sides) == 2 and not called(ast.Tuple(sides)):
                assert ast.dump(sides[0]) != ast.dump(sides[1]), f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_nothing_private_of_the_product_is_looked_at():
    """What a test wants to know, the public surface shows: the plan, the model's state, the stages' own functions."""
    for path in filter(lambda path: name_of(path) not in LOOK_INSIDE, FILES):
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        found = [f"{path}:{number}: {line.strip()}" for number, line in lines if PRIVATE.search(line)]
        imports = [f"{path}:{node.lineno}: {ast.unparse(node)}" for node in ast.walk(tree(path)) if takes_private(node)]
        assert found + imports == []


def takes_private(node: ast.AST) -> bool:
    """Whether a private name is imported from a module of the product."""
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(("autodist_core", "autodist_keras")):
        return False
    return any(alias.name.startswith("_") for alias in node.names)
