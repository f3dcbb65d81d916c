"""The programs of examples/real, with packages that nobody here wrote: two replicas train as plain Keras does."""

import re

import numpy as np
import pytest

from tests.network.lan import ROOT
from tests.support.compare import TOLERANCE, assert_same
from tests.support.programs import module_of

PROGRAMS = ROOT / "examples/real"
programs = module_of(PROGRAMS / "compare.py")

FLOAT32 = 1e-5
"""For BayesFlow, which casts to float32: 4.3e-6 was measured, in a bias of an output layer."""


@pytest.mark.filterwarnings("ignore")  # the packages warn of each other
@pytest.mark.parametrize("name", programs.NAMES)
def test_it_equals_one_device(name, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(PROGRAMS)
    for package in re.findall(r"^(?:import|from) (\w+)", (PROGRAMS / f"{name}.py").read_text(), re.MULTILINE):
        pytest.importorskip(package, reason=f"`make test-packages` installs {package}")
    caplog.set_level("INFO", "autodist")
    expected = programs.numbers(name, distributed=False)
    assert "per step = " not in caplog.text
    assert all(np.isfinite(value).all() for value in expected.values())
    actual = programs.numbers(name, distributed=True)
    assert "per step = 2 x " in caplog.text
    assert_same(expected, actual, FLOAT32 if name in programs.ONLY_FLOAT32 else TOLERANCE)


def test_the_page_names_each_program():
    named = re.findall(r"examples/real/(\w+)\.py", (ROOT / "docs/with-other-packages.md").read_text())
    assert set(named) - {"compare"} == set(programs.NAMES)
