"""The messages: their names and numbers, and the modules generated from them."""

import subprocess
import sys

import pytest

from autodist_core.proto import graphitem_pb2, strategy_pb2, synchronizers_pb2
from tests.support.programs import ROOT, module_of

ORIGINAL = {
    graphitem_pb2.GraphItem: {"graph_def": 1, "grad_target_pairs": 2, "info": 3},
    graphitem_pb2.GraphItem.Info: {"variables": 1, "table_initializers": 2, "savers": 3},
    strategy_pb2.Strategy: {"id": 1, "path": 2, "node_config": 3, "graph_config": 4},
    strategy_pb2.Strategy.Node: {
        "var_name": 1, "PSSynchronizer": 2, "AllReduceSynchronizer": 3, "partitioner": 4, "part_config": 5
    },
    strategy_pb2.Strategy.GraphConfig: {"replicas": 1},
    synchronizers_pb2.PSSynchronizer: {"reduction_destination": 1, "local_replication": 2, "sync": 3, "staleness": 4},
    synchronizers_pb2.AllReduceSynchronizer: {"spec": 1, "compressor": 2, "group": 3},
}  # fmt: skip


@pytest.mark.parametrize("message", ORIGINAL, ids=lambda message: message.DESCRIPTOR.full_name)
def test_original_numbers_are_kept_and_additions_start_at_20(message):
    assert message.DESCRIPTOR.full_name.startswith("autodist.proto.")
    numbers = {field.name: field.number for field in message.DESCRIPTOR.fields}
    assert {name: number for name, number in numbers.items() if number < 20} == ORIGINAL[message]


def test_original_values_are_kept():
    reduce = synchronizers_pb2.AllReduceSynchronizer
    assert dict(reduce.Spec.items()) == {"AUTO": 0, "NCCL": 1, "RING": 2}
    compressors = {"NoneCompressor": 0, "HorovodCompressor": 1, "HorovodCompressorEF": 2, "PowerSGDCompressor": 20}
    assert dict(reduce.Compressor.items()) == compressors
    assert strategy_pb2.Strategy.Node.DESCRIPTOR.oneofs_by_name["synchronizer"].fields[0].name == "PSSynchronizer"


@pytest.mark.parametrize("path", sorted((ROOT / "proto").glob("*.proto")), ids=lambda path: path.name)
def test_every_message_field_and_value_has_a_comment(path):
    before = ""
    for line in map(str.strip, path.read_text().splitlines()):
        declares = line.startswith(("message ", "enum ", "oneof ")) or (line.endswith(";") and "=" in line)
        if declares and not line.startswith("syntax"):
            assert before.startswith("//"), f"{path.name}: no comment above: {line}"
        before = line


@pytest.mark.oldest
def test_the_generated_modules_load_without_a_warning():
    modules = ("graphitem_pb2", "strategy_pb2", "synchronizers_pb2")
    program = "; ".join(f"import autodist_core.proto.{module}" for module in modules)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr


@pytest.fixture
def generator(tmp_path, monkeypatch):
    """proto/generate.py, with a folder and texts of the test's own in place of the package and the compiler."""
    module = module_of(ROOT / "proto" / "generate.py")
    monkeypatch.setattr(module, "TARGET", tmp_path / "made")
    monkeypatch.setattr(
        module, "render", lambda: {"__init__.py": "# ours\n", "a_pb2.py": "A = 1\n", "a_pb2.pyi": "A: int\n"}
    )
    return module


def test_a_stale_module_is_named(generator, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["generate.py", *arguments])
        return generator.main(), capsys.readouterr()

    assert run()[0] == 0 and run("--check")[0] == 0
    assert run()[1].out == ""
    (generator.TARGET / "a_pb2.py").write_text("A = 2\n")
    (generator.TARGET / "left_over_pb2.py").touch()
    code, said = run("--check")
    assert code == 1
    assert [line.split()[0] for line in said.err.splitlines()] == [
        "autodist_core/proto/a_pb2.py",
        "autodist_core/proto/left_over_pb2.py",
    ]
    assert run()[0] == 0 and run("--check")[0] == 0
    assert not (generator.TARGET / "left_over_pb2.py").exists()


def test_each_version_of_python_has_a_generator_of_its_own(generator, monkeypatch, tmp_path):
    """One clone may be used with several; the wheels of another one do not load."""
    monkeypatch.setattr(generator, "SOURCES", tmp_path / "proto")
    folder = tmp_path / "build" / f"{generator.GENERATOR}-{sys.implementation.cache_tag}"
    folder.mkdir(parents=True)
    (folder / "complete").touch()
    assert generator.generator() == folder
