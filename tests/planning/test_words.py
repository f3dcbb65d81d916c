"""The words of what the packages say: read from the source of every module."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
    for path in (path for package in ("autodist_core", "autodist_keras") for path in (ROOT / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.update(counted(ast.parse(text)))
        endings += [path.name for _ in re.findall("else ['\"]s['\"]", text)]
    assert (found, endings) == (NEVER_ONE, [])
