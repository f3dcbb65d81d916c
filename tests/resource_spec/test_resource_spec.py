"""ResourceSpec: what it reads, and what it says about a file that is wrong."""

import json
import stat
from types import SimpleNamespace

import pytest

from autodist_core import DeviceSpec, Node, ResourceSpec, ResourceSpecError, SSHGroup
from autodist_core.resource_spec import discovery
from tests.planning import goldens

FULL = """
nodes:
  - address: Chief.example.org
    chief: true
    gpus: [1, 0]
    network_bandwidth: 25
  - address: 10.0.0.2
    gpus: 2
    cpus: [0, 1]
    ssh_config: fast
  - address: "[FE80::0:3]"
    ssh_config: slow
ssh:
  fast: {username: ubuntu, port: 2222, key_file: ~/.ssh/id, shared_envs: {LANG: C, THREADS: 4}}
  slow:
    python_venv: source ~/venv/bin/activate
"""


def read(text, folder):
    path = folder / "cluster.yml"
    path.write_text(text)
    return ResourceSpec(path)


def test_every_key(tmp_path):
    spec = read(FULL, tmp_path)
    assert spec.nodes == (
        Node("chief.example.org", True, (1, 0), (0,), 25.0, None),
        Node("10.0.0.2", False, (0, 1), (0, 1), 1.0, "fast"),
        Node("fe80::3", False, (), (0,), 1.0, "slow"),
    )
    assert spec.chief is spec.nodes[0]
    assert spec.num_cpus == 4 and spec.num_gpus == 4
    assert spec.network_bandwidth == {"chief.example.org": 25.0, "10.0.0.2": 1.0, "fe80::3": 1.0}
    assert spec.cpu_devices[-1] == ("[fe80::3]:CPU:0", DeviceSpec("fe80::3", "CPU", 0))
    assert [name for name, _ in spec.node_gpu_devices["10.0.0.2"]] == ["10.0.0.2:GPU:0", "10.0.0.2:GPU:1"]
    assert spec.node_gpu_devices["fe80::3"] == ()
    assert dict(spec.devices) == dict([*spec.cpu_devices, *spec.gpu_devices])
    assert [name for name, _ in spec.replica_devices][-1] == "[fe80::3]:CPU:0"
    assert spec.ssh_group(spec.nodes[1]) == SSHGroup(
        "fast", "ubuntu", 2222, "~/.ssh/id", "", (("LANG", "C"), ("THREADS", "4"))
    )
    assert spec.ssh_group(spec.nodes[0]) == SSHGroup()
    goldens.check("resource_spec", str(spec))


def test_a_flat_ssh_group_is_every_nodes():
    nodes = [{"address": "a", "chief": True}, {"address": "b"}]
    spec = ResourceSpec({"nodes": nodes, "ssh": {"username": "me", "shared_envs": {"A": "1"}}})
    assert {spec.ssh_group(node).username for node in spec.nodes} == {"me"}


def test_the_seeds_files():
    one = ResourceSpec({"nodes": [{"address": "localhost", "gpus": [0, 1], "chief": True}]})
    assert [name for name, _ in one.gpu_devices] == ["localhost:GPU:0", "localhost:GPU:1"]
    assert ResourceSpec({"nodes": [{"address": "localhost", "gpus": [0, 1]}]}) == one
    assert len({one, ResourceSpec({"nodes": [{"address": "localhost", "gpus": 2}]})}) == 1


NODE = "nodes:\n  - address: 10.0.0.1\n    chief: true\n"
TWO = NODE + "  - address: 10.0.0.2\n"
WRONG = {
    "unknown key in a node": NODE + "    gpu: [0]\n",
    "unknown key in the file": NODE + "shh: {username: me}\n",
    "unknown key in the ssh group": NODE + "ssh: {user_name: me}\n",
    "unknown key in a named ssh group": NODE + "ssh: {workers: {username: me, keyfile: a}}\n",
    "no chief": TWO.replace("    chief: true\n", ""),
    "two chiefs": TWO + "    chief: true\n",
    "a single node that is no chief": NODE.replace("true", "false"),
    "duplicate address": TWO.replace("10.0.0.2", "10.0.0.1"),
    "duplicate address in another notation": TWO.replace("10.0.0.2", "fe80::1") + "  - address: 'FE80:0::1'\n",
    "loopback among several nodes": TWO.replace("10.0.0.2", "localhost"),
    "loopback address among several nodes": TWO.replace("10.0.0.1", "127.0.0.1"),
    "loopback in IPv6 among several nodes": TWO.replace("10.0.0.2", "'::ffff:127.0.0.1'"),
    "missing ssh group": TWO + "    ssh_config: wrokers\nssh: {workers: {username: me}, others: {}}\n",
    "no ssh groups at all": TWO + "    ssh_config: workers\n",
    "several groups and none named": TWO + "ssh: {workers: {username: me}, others: {}}\n",
    "negative device index": NODE + "    gpus: [0, -1]\n",
    "duplicate device index": NODE + "    cpus: [0, 1, 0]\n",
    "negative number of devices": NODE + "    gpus: -1\n",
    "no cpus": NODE + "    cpus: []\n",
    "text for gpus": NODE + "    gpus: all\n",
    "true for cpus": NODE + "    cpus: true\n",
    "a fraction among the indices": NODE + "    gpus: [0, 1.5]\n",
    "an index that no device has": NODE + "    gpus: [99999999999999999999]\n",
    "more devices than a machine has": NODE + "    gpus: 99999999\n",
    "a date that is none": NODE + "    cpus: 2020-13-45\n",
    "a tag that does not fit": NODE + "    gpus: !!bool perhaps\n",
    "text for chief": NODE.replace("true", "'yes'"),
    "negative bandwidth": NODE + "    network_bandwidth: -1\n",
    "text for bandwidth": NODE + "    network_bandwidth: 10 Gbit/s\n",
    "bandwidth that is no number": NODE + "    network_bandwidth: .nan\n",
    "more bandwidth than there is": NODE + f"    network_bandwidth: 1{400 * '0'}\n",
    "a number for ssh_config": NODE + "    ssh_config: 3\nssh: {username: me}\n",
    "no address": "nodes:\n  - gpus: [0]\n",
    "a number for address": "nodes:\n  - address: 10\n",
    "an address with a port": "nodes:\n  - address: 10.0.0.1:22\n",
    "an impossible IPv4 address": "nodes:\n  - address: 10.0.0.256\n",
    "an impossible hostname": "nodes:\n  - address: my host\n",
    "IPv6 brackets without quotes": "nodes:\n  - address: [fe80::1]\n",
    "empty nodes": "nodes: []\n",
    "nodes without a value": "nodes:\n",
    "no nodes": "ssh: {username: me}\n",
    "nodes as a mapping": "nodes: {address: localhost}\n",
    "a node that is text": "nodes: [localhost]\n",
    "a node without a value": "nodes:\n  -\n",
    "a port out of range": NODE + "ssh: {port: 70000}\n",
    "a port that is text": NODE + "ssh: {port: '22'}\n",
    "a username that is a number": NODE + "ssh: {username: 7}\n",
    "shared_envs as a list": NODE + "ssh: {shared_envs: [A=1]}\n",
    "a switch in shared_envs": NODE + "ssh: {shared_envs: {DEBUG: on}}\n",
    "no name of a variable": NODE + "ssh: {shared_envs: {'A B=': x}}\n",
    "a username that is an option": NODE + "ssh: {username: -oProxyCommand=x}\n",
    "an ssh group that is empty": TWO + "ssh: {workers: }\n",
    "ssh as text": NODE + "ssh: ubuntu\n",
    "an empty file": "",
    "plain text": "hello\n",
    "a list": "- address: localhost\n",
    "not YAML": "nodes: [address: {\n",
    "a tab": "nodes:\n\t- address: localhost\n",
    "a key twice": NODE + "    chief: false\n",
    "nested too deeply": "[" * 3000,
    "an object": "nodes: !!python/object/apply:os.getcwd []\n",
}


def error_of(argument, make=ResourceSpec):
    with pytest.raises(ResourceSpecError) as caught:
        make(argument)
    return goldens.message(caught.value)


def test_every_wrong_file_has_its_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = []
    for name, text in WRONG.items():
        (tmp_path / "cluster.yml").write_text(text)
        lines.append(f"{name}\n  {error_of('cluster.yml')}")
    (tmp_path / "latin1.yml").write_bytes(b"nodes: \xe9")
    (tmp_path / "folder").mkdir()
    others = {
        "a missing file": "clutser.yml",
        "a directory": "folder",
        "another encoding": "latin1.yml",
        "a path that is none": "a\0b",
        "an argument of another type": 3,
        "a dict": {"nodes": [{"address": "localhost", "gpus": "0"}]},
        "a set for nodes": {"nodes": {"localhost"}},
    }
    lines += [f"{name}\n  {error_of(argument)}".replace(str(tmp_path), "<folder>") for name, argument in others.items()]
    goldens.check("resource_spec_errors", "\n".join(lines))


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "cluster.yml"
    path.write_text(NODE)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_text", refuse)
    assert error_of(path).startswith(f"ResourceSpecError: '{path}' cannot be read: Permission denied. ")


def test_this_machine_is_its_gpus_or_one_cpu(monkeypatch):
    monkeypatch.setattr(discovery, "local_gpus", lambda: ())
    assert [name for name, _ in ResourceSpec().devices] == ["localhost:CPU:0"]
    monkeypatch.setattr(discovery, "local_gpus", lambda: (0, 1))
    assert [name for name, _ in ResourceSpec(None).replica_devices] == ["localhost:GPU:0", "localhost:GPU:1"]


@pytest.mark.parametrize(
    ("mask", "expected"), [(None, 2), ("", 0), ("-1", 0), ("1", 1), ("1,0", 2), ("0,7,1", 1), ("GPU-a1,GPU-b2", 2)]
)
def test_gpus_are_counted_by_their_device_files(tmp_path, monkeypatch, mask, expected):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / name).touch()
    if mask is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert discovery.local_gpus(tmp_path) == tuple(range(expected))


def test_gpus_are_counted_by_nvidia_smi_where_there_are_no_device_files(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert discovery.local_gpus(tmp_path / "none") == ()
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: Tesla (UUID: GPU-1)'\necho '  MIG 1g'\necho 'GPU 1: Tesla (UUID: GPU-2)'\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert discovery.local_gpus(tmp_path / "none") == (0, 1)


def test_tf_config(monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "b:2", "[fe80::3]:1"], "ps": ["c:1"], "evaluator": ["d:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    spec = ResourceSpec.from_tf_config(gpus=2)
    assert [node.address for node in spec.nodes] == ["a", "b", "fe80::3", "c"]
    assert spec.chief.address == "a"
    assert spec.num_gpus == 6 and spec.node_gpu_devices["c"] == ()
    seed = {"cluster": {"worker": ["localhost:12345", "localhost:23456"], "ps": ["localhost:34567"]}}
    assert [node.address for node in ResourceSpec.from_tf_config(json.dumps(seed)).nodes] == ["localhost"]


def test_cluster_resolver():
    cluster = {"worker": {0: "n0:8888", 2: "n2:8888"}}
    resolver = SimpleNamespace(cluster_spec=lambda: SimpleNamespace(as_dict=lambda: cluster))
    spec = ResourceSpec.from_cluster_resolver(resolver, gpus=4)
    assert [node.address for node in spec.nodes] == ["n0", "n2"] and spec.num_gpus == 8


def test_wrong_clusters_have_their_messages(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    texts = [None, "{", "[]", '{"task": {}}', '{"cluster": {"ps": ["a:1"]}}', '{"cluster": {"worker": ["a b:1"]}}']
    texts.append('{"cluster": {"worker": ["127.0.0.1:1", "10.0.0.2:1"]}}')
    wrong = [{"nodes": "2"}, {"nodes": 0}, {"nodes": True}, {"cpus": -1}, {"gpus": 1.5}, {"seconds": "long"}]
    lines = [f"{text}\n  {error_of(text, ResourceSpec.from_tf_config)}" for text in texts]
    from_ray = lambda words: ResourceSpec.from_ray(**{"nodes": 2, **words})  # noqa: E731
    lines += [f"{words}\n  {error_of(words, from_ray)}" for words in wrong]
    for resolver in (None, SimpleNamespace(cluster_spec=lambda: None)):
        with pytest.raises(ResourceSpecError, match="from_cluster_resolver takes a"):
            ResourceSpec.from_cluster_resolver(resolver)
    goldens.check("cluster_errors", "\n".join(lines))


@pytest.mark.parametrize(
    "name", ["a", "a:GPU", "a:TPU:0", "fe80::1:CPU:0", "a:CPU:-1", "a:CPU:0:1", "10.0.0.300:CPU:0", ""]
)
def test_what_is_no_device(name):
    with pytest.raises(ResourceSpecError):
        DeviceSpec.parse(name)
