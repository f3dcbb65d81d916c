"""Build steps; the metadata stands in setup.cfg.

The protobuf modules of ``autodist_core/proto`` are generated from ``proto/`` and committed, so an installation needs no
protobuf compiler. Where one is missing all are generated; ``python setup.py build_proto --force`` does it in any case.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.build import build


def load_generator() -> ModuleType:
    """Return ``proto/generate.py``, a script beside the sources that no installation can import."""
    spec = importlib.util.spec_from_file_location("generate", Path(__file__).resolve().parent / "proto" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = load_generator()
complete = all((generator.TARGET / f"{name}_pb2.py").exists() for name in generator.NAMES)


class BuildProto(Command):
    """Generate the protobuf modules, if they are not all there or it is forced."""

    description = "generate autodist_core/proto from proto/"
    user_options: ClassVar = [("force", "f", "generate although the modules are there")]
    boolean_options: ClassVar = ["force"]
    # Set by setuptools on each step of an editable installation.
    editable_mode = False

    def initialize_options(self) -> None:
        self.force = False

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        if self.force or not complete:
            for path in generator.generate():
                print(f"wrote {path}")

    # A step of `build` is asked which files it reads, for the source distribution, and which it writes into the wheel:
    # none, since the modules it writes are build_py's to collect.
    def get_source_files(self) -> list[str]:
        return ["proto/generate.py", *(f"proto/{name}.proto" for name in generator.NAMES)]

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    """Build what setuptools builds, the protobuf modules first."""

    sub_commands: ClassVar = [("build_proto", None), *build.sub_commands]


# The generator fetches its compiler with pip, which a build environment does not have by itself.
setup(cmdclass={"build": Build, "build_proto": BuildProto}, setup_requires=[] if complete else ["pip"])
