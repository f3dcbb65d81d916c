"""What every test shares: quiet TensorFlow, an untouched Keras, and float64 where numbers count."""

import gc
import os
import signal
import sys
from collections import defaultdict
from pathlib import Path

# Both are read when TensorFlow and Keras are imported: once in this process, and after this file.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["AUTODIST_CACHE"] = ""  # no test finds what another one chose

import pytest
import tensorflow as tf

from tests.network.fixtures import make_network, network, network_is_possible  # noqa: F401
from tests.support.notebooks import this_python  # noqa: F401

# Each replica of a test has a device of its own, as on GPUs. TensorFlow makes devices only before it begins to run.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)

NUMERIC = {
    "auto", "callbacks", "capture", "equality", "forecast", "front", "kernel", "loops", "reports", "runtime",
}  # fmt: skip
"""The folders in which everything is computed in float64."""

BRIEF = {"plan", "planning", "proto", "resource_spec", "seams", "step", "strategy"}
"""The folders whose files are short. Test processes take files in this order, so that all of them end together."""

WITHOUT_OPTIMIZER = {
    "callbacks": {"test_keras_callbacks", "test_resume"},
    "kernel": {"test_mixed_updates", "test_packing", "test_partitioner"},
    "reports": {"test_verify", "test_verify_forms"},
}
"""The modules for which TensorFlow's graph optimizer is off: it takes a quarter of the time of a small training."""

WITH_OPTIMIZER = {
    "capture": set(),
    "equality": {"test_one_replica"},
    "front": {
        "test_fused_kernels", "test_gpus", "test_interrupts", "test_loose", "test_memory", "test_products",
        "test_promises", "test_random_streams", "test_random_updates",
    },
    "loops": {
        "test_distribute", "test_original_cases", "test_over_hosts", "test_own_writes", "test_random_draws",
        "test_traced_epoch",
    },
}  # fmt: skip
"""Folders for which it is off but in these modules: what is computed is tested with it there and in other folders."""

LONG_FILE = "tests/long.txt"
LONG = {line for line in Path(__file__).with_name("long.txt").read_text().splitlines() if not line.startswith("#")}
"""Names of tests, of all combinations or of one, that only `make test-long` runs."""

# What a shell puts into the background ignores Ctrl-C, and so would every program that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

OF_KERAS = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
"""Keras's callbacks and its saving turn variables into arrays in a way that NumPy 2 warns of."""


def is_numeric(path: Path) -> bool:
    """Whether a test's file lies in one of them; doctests and what lies in `tests` itself do not."""
    return folder_of(path) in NUMERIC


def folder_of(path: Path) -> str:
    """The folder of `tests` in which a test's file lies, however deep."""
    tests = Path(__file__).parent
    return path.relative_to(tests).parts[0] if path.is_relative_to(tests) else ""


def pytest_addoption(parser):
    """`--part 0/2` runs one of two parts of the long tests: each test is in exactly one of them."""
    parser.addoption("--part", default="0/1", help="of the long tests, the part K of N: K/N")


def pytest_collection_modifyitems(config, items):
    """Warnings are errors, except for the one that is Keras's own; combinations that `quick` does not name are long."""
    named, there, files = {}, defaultdict(set), {item.nodeid.partition("::")[0] for item in items}
    listed = {name for name in LONG if name.partition("::")[0] in files}
    for item in items:
        if names := listed & {item.nodeid, item.nodeid.partition("[")[0]}:
            item.add_marker(pytest.mark.long)
            there[LONG_FILE].update(names)
        if folder_of(item.path) in NUMERIC | {"cluster"}:
            item.add_marker(pytest.mark.filterwarnings(OF_KERAS))
        if quick := item.get_closest_marker("quick"):
            test, combination = item.nodeid.removesuffix("]").split("[", 1)
            named[test] = set(quick.args)
            there[test].add(combination)
            if combination not in named[test]:
                item.add_marker(pytest.mark.long)
    number, parts = map(int, config.getoption("--part").split("/"))
    long = [item for item in items if item.get_closest_marker("long")]
    # Combinations of one test take about as long as each other, and stand together: the parts get them in turns.
    left = {item for place, item in enumerate(sorted(long, key=has_combinations)) if place % parts != number}
    items[:] = sorted((item for item in items if item not in left), key=lambda item: folder_of(item.path) in BRIEF)
    config.hook.pytest_deselected(items=list(left))
    # Where a part of a file was asked for, others may be missing for that.
    if not any("::" in argument for argument in config.args):
        refuse_unknown_combinations(named | {LONG_FILE: listed}, there)


def has_combinations(item) -> bool:
    """Whether `quick` leaves it to the long tests; what takes long by itself is shared out before them."""
    return item.get_closest_marker("quick") is not None


def refuse_unknown_combinations(named, there):
    """A wrong name in `quick` would leave a combination to the long tests unseen, one in the list to `make test`."""
    for test, names in named.items():
        if unknown := sorted(names - there[test]):
            known = sorted(there[test])[:20]
            raise pytest.UsageError(f"{test} names {unknown}, which no test has. Correct or remove it. Known: {known}")


@pytest.fixture(autouse=True)
def fresh_keras(request):
    """Give each test Keras's defaults and the same seeds, whatever ran before; imports nothing by itself."""
    reset_keras()
    if "tensorflow" in sys.modules:
        leave_data_untuned()
    if is_numeric(request.path):
        request.getfixturevalue("float64")
    yield
    reset_keras()


@pytest.fixture(autouse=True)
def graph_optimizer(request):
    """Switch TensorFlow's graph optimizer off where it is not the matter."""
    folder, module = folder_of(request.path), request.path.stem
    off = module in WITHOUT_OPTIMIZER.get(folder, ()) or module not in WITH_OPTIMIZER.get(folder, {module})
    if off:
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    if off:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture(autouse=True, scope="module")
def collected():
    """Collect garbage after a module and not in it, where looking through all graphs again and again takes its time.

    TensorFlow keeps every custom gradient, and with it the graph of a training: those of a module's are taken back.
    """
    gc.disable()
    yield
    gc.enable()
    if "tensorflow" in sys.modules:
        registered = sys.modules["tensorflow.python.framework.ops"].gradient_registry._registry
        for name in [name for name in registered if name.startswith("CustomGradient-")]:
            del registered[name]
    gc.collect()
    gc.freeze()


def leave_data_untuned():
    """Let tf.data tune nothing: its tuner sleeps longer and longer, and at times misses that its iterator is deleted.

    Whoever lets go of an iterator then waits as long as that has lived, up to a minute.
    """
    import tensorflow as tf

    def untuned(dataset):
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options)

    assert hasattr(tf.data.Dataset, "_apply_debug_options"), "what TensorFlow calls for every new iterator has moved"
    tf.data.Dataset._apply_debug_options = untuned


def reset_keras():
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "utils"):
        return
    keras.utils.clear_session(free_memory=False)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(0)


@pytest.fixture
def float64():
    """Make Keras compute in float64 within the test, where wrong averaging cannot hide behind rounding."""
    import keras

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
