"""Train small models of other packages plainly and on two replicas, and compare.

    python examples/real/compare.py                     # lists the programs
    python examples/real/compare.py keras_hub_clip      # runs one of them both ways, or several, or `all`

Each program runs by itself, too: `python examples/real/keras_hub_clip.py`. Its function `train` trains a model and
returns it, with what was logged. Here they compute in float64, where a difference is rounding if it is below 1e-12 of
a tensor's largest entry; BayesFlow computes in float32 only.
"""

import ast
import importlib
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.name != "compare.py")
ONLY_FLOAT32 = ("bayesflow_workflow",)


def what(name: str) -> str:
    """Return the first sentence of a program's docstring."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def numbers(name: str, distributed: bool) -> dict[str, np.ndarray]:
    """Return what a training leaves behind: the weights, the optimizer's variables, and what was logged."""
    keras.utils.clear_session(free_memory=False)
    keras.config.set_floatx("float32" if name in ONLY_FLOAT32 else "float64")
    model, logged = importlib.import_module(name).train(distributed)
    variables = [*model.variables, *model.optimizer.variables]
    values = {f"{index} {each.path}": each.numpy() for index, each in enumerate(variables)}
    # A bias of the keys of attention has no gradient but the rounding of a sum that is zero.
    values = {key: np.where(abs(value) <= 1e-15, 0, value) for key, value in values.items()}
    return values | {f"logged {key}": np.array(value) for key, value in logged.items()}


def run(name: str) -> None:
    """Train both ways, and print the largest difference as a fraction of a tensor's largest entry."""
    print(f"{name}: {what(name)}")
    start = time.perf_counter()
    reference, ours = numbers(name, False), numbers(name, True)
    found = [(0.0, "none")]
    for key, value in reference.items():
        if value.dtype.kind == "f" and not np.array_equal(ours[key], value):
            found.append((float(np.max(np.abs(ours[key] - value)) / np.max(np.abs(value))), key))
    difference, where = max(found)
    seconds = time.perf_counter() - start
    print(f"  the largest difference is {difference:.1e} ({where}); both took {seconds:.0f} s\n", flush=True)


def main() -> int:
    """Run the programs that the command line names."""
    if not sys.argv[1:]:
        print("\n".join(f"{name:31} {what(name)}" for name in NAMES))
    for name in NAMES if "all" in sys.argv else sys.argv[1:]:
        run(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
