"""A server without the rest of TensorFlow's Python computes all that TensorFlow computes."""

import json
import os
import subprocess
import sys

import pytest
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import kernels

AS_AN_AGENT = """
import json, sys
from autodist_core.cluster.on_node.light_tensorflow import import_tensorflow_server
import_tensorflow_server()
from autodist_core.cluster.on_node import server
whole = "keras" in sys.modules
from tests.cluster.on_node.test_light_tensorflow import known
print(json.dumps([whole, *known()]))
"""


def known():
    """The operations and the kernels that this process knows, each as TensorFlow's own message."""
    from tensorflow.core.framework.op_def_pb2 import OpList

    operations = OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    registered = kernels.get_all_registered_kernels().kernel
    both = operations.op, registered
    return [sorted(each.SerializeToString().decode("latin-1") for each in found) for found in both]


@pytest.fixture
def agent(tmp_path):
    """Whether an agent's process has all of TensorFlow, and what it knows, with these variables besides."""
    home = tmp_path / "home"
    home.mkdir()

    def run(**environment):
        variables = os.environ | {"HOME": str(home), **environment}
        done = subprocess.run(
            [sys.executable, "-c", AS_AN_AGENT], env=variables, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert not list(home.iterdir())
        return json.loads(done.stdout)

    return run


@pytest.mark.oldest
def test_it_knows_every_operation_and_kernel_and_what_extends_tensorflow_is_not_left_out(agent, tmp_path):
    (tmp_path / "tensorflow-plugins").mkdir()
    whole, *everything = agent(PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    light, *found = agent()
    assert (whole, light) == (True, False)
    for here, there in zip(everything, found, strict=True):
        # Sound features for the smallest devices, in a library of their own that TensorFlow's Python loads.
        missing = [each for each in set(here) - set(there) if "AudioMicrofrontend" not in each]
        assert len(there) > 1500 and missing == []
