"""What is installed: the files of the distributions, the dependencies' bounds, and the names that users may rely on."""

import configparser
import importlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser

import pytest
import yaml

from tests.support.programs import ROOT

PACKAGES = ("autodist_core", "autodist_keras")

# Adding a name here is a promise to keep it; taking one away breaks somebody's program.
PUBLIC_NAMES = {
    "autodist_core": """
        AutoDist AutodistError CaptureError CompiledStrategy DeviceSpec Gradient GraphItem KernelError LaunchError Node
        NodeLostError NotYetError ResourceSpec ResourceSpecError SSHGroup SeamError SessionError Strategy
        StrategyBuilder StrategyCompiler StrategyError Table Tensor Variable distribute errors plan strategy whole_batch
    """,
    "autodist_core.strategy": """
        AllReduce BUILDERS PS PSLoadBalancing Parallax PartitionedAR PartitionedPS RandomAxisPartitionAR Sharded
        Strategy StrategyBuilder UnevenPartitionedPS default resolve
    """,
    "autodist_keras": "DistributedModel callbacks synchronize_batch_norm without_values",
}


def build(kind, source, target):
    """Run one hook of setuptools on ``source``, as pip does, and return the archive it made."""
    target.mkdir()
    call = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", call, target], cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (archive,) = target.iterdir()
    return archive


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution, made from a copy of the tree, so that nothing is written into it."""
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "copy"
    copy.mkdir()
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in (*PACKAGES, "proto", "tests", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return build("sdist", copy, folder / "dist")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, made from the source distribution: what is missing there is missing here."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    with zipfile.ZipFile(build("wheel", source, folder / "dist")) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_wheel_holds_the_packages_and_nothing_else(wheel):
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".pyi") or path.name == "py.typed"
    }
    assert {f"{package}/py.typed" for package in PACKAGES} <= expected
    assert {name for name in wheel if ".dist-info/" not in name} == expected


def test_wheel_says_what_it_is(wheel):
    (metadata,) = (text for name, text in wheel.items() if name.endswith(".dist-info/METADATA"))
    message = Parser().parsestr(metadata)
    assert message["Name"] == "autodist-keras"
    assert f"\nversion: {message['Version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {message['Version']} - " in (ROOT / "CHANGELOG.md").read_text()
    assert set(message["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    assert "Apache-2.0" in (message["License-Expression"] or message["License"])
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


def test_source_distribution_can_generate_the_messages(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "proto").glob("*.proto")}
    assert sources
    assert sources | {"proto/generate.py"} <= names


def test_sources_of_the_messages_cannot_be_imported(tmp_path):
    # Another distribution may own the name `proto`; what matters is that it never leads here.
    look = "import importlib.util as u; s = u.find_spec('proto'); print(*(s and s.submodule_search_locations or ()))"
    command = [sys.executable, "-I", "-c", look]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert str(ROOT) not in done.stdout


def test_the_files_of_github_can_be_read():
    assert all(yaml.safe_load(path.read_text())["name"] for path in (ROOT / ".github").rglob("*.yml"))


def requirements(section, key):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return [line for line in config[section][key].splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(
    "requirement",
    requirements("options", "install_requires")
    + requirements("options.extras_require", "test")
    + requirements("options.extras_require", "docs"),
)
def test_every_dependency_has_two_bounds(requirement):
    assert re.fullmatch(r"[\w.-]+>=[\d.]+,<[\d.]+", requirement)


def test_oldest_constraints_are_the_lower_bounds():
    lower = {line.split(",")[0].replace(">=", "==") for line in requirements("options", "install_requires")}
    pins = (ROOT / "tests" / "constraints-oldest.txt").read_text().splitlines()
    assert {pin for pin in pins if not pin.startswith("#")} == lower


@pytest.mark.oldest
@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_public_names(module):
    imported = importlib.import_module(module)
    assert set(imported.__all__) == set(PUBLIC_NAMES[module].split())
    values = [getattr(imported, name) for name in imported.__all__]
    assert all(value.__doc__ for value in values if callable(value))
