"""The files of docker/: what they start is started here, on hosts of the test network in place of their machines."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.network.lan import ROOT
from tests.support.waiting import until

DOCKER = ROOT / "docker"
SECRET = "a secret of the job's own"
PROGRAMS = {"python": [sys.executable], "autodist": [sys.executable, "-m", "autodist_core"]}


def documents(name):
    return list(yaml.safe_load_all((DOCKER / name).read_text()))


def services():
    """The host name, the command and the variables of each container of compose.yml."""
    (content,) = documents("compose.yml")
    for name, service in content["services"].items():
        assert service["image"] == "autodist-keras"
        yield name, service["command"], service["environment"] | {"AUTODIST_SECRET": SECRET}


def of_pod(host, pod, **fields):
    """The same of a pod; `fields` are what its controller writes into its annotations."""
    (container,) = pod["containers"]
    assert container["image"] == "autodist-keras"
    assert all(port == {"containerPort": 8888} for port in container.get("ports", ()))
    env = {}
    for each in container["env"]:
        source = each.get("valueFrom", {})
        if "fieldRef" in source:
            field = re.search(r"/([\w-]+)'\]$", source["fieldRef"]["fieldPath"])[1]
            env[each["name"]] = fields[field.replace("-", "_")]
        elif "secretKeyRef" in source:
            env[each["name"]] = SECRET
        else:
            env[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], each["value"])
    return host, container["command"], env


def pods_of_kubernetes():
    service, agents, job = documents("kubernetes.yaml")
    for each in (agents, job):
        assert service["spec"]["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
    subdomain, pod = service["metadata"]["name"], job["spec"]["template"]["spec"]
    assert pod["subdomain"] == agents["spec"]["serviceName"] == subdomain
    yield of_pod(f"{pod['hostname']}.{subdomain}", pod)
    for index in range(agents["spec"]["replicas"]):
        yield of_pod(f"{agents['metadata']['name']}-{index}.{subdomain}", agents["spec"]["template"]["spec"])


def pods_of_kubeflow():
    runtime, job = documents("kubeflow.yaml")
    name, spec = job["metadata"]["name"], runtime["spec"]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (replicated,) = spec["template"]["spec"]["replicatedJobs"]
    for index in range(spec["mlPolicy"]["numNodes"]):
        pod, host = replicated["template"]["spec"]["template"]["spec"], f"{name}-{replicated['name']}-0-{index}.{name}"
        yield of_pod(host, pod, jobset_name=name, job_completion_index=str(index))


def command(words):
    arguments = [str(DOCKER / word) if word == "program.py" else word for word in words[1:]]
    return [*PROGRAMS[words[0]], *arguments]


def clean(**env):
    """The variables of a process. Keras computes in float64, where machines and one device print the same digits."""
    names = ("TF_CONFIG", "AUTODIST_SECRET", *(name for name in os.environ if name.startswith("SLURM_")))
    env |= {"PYTHONPATH": str(ROOT), "KERAS_HOME": str(ROOT / "tests/cluster/float64")}
    return {name: value for name, value in os.environ.items() if name not in names} | env


def losses(printed):
    (found,) = re.findall(r"loss: (.*)", printed)
    return found


@cache
def alone():
    """The losses of the program on one machine."""
    done = subprocess.run(command(["python", "program.py"]), env=clean(), capture_output=True, text=True, check=True)
    return losses(done.stdout)


@pytest.fixture(autouse=True)
def no_agents(request):
    """Afterwards, end the agents, which would wait for another run."""
    yield
    for host in request.getfixturevalue("network").hosts[1:] if "network" in request.fixturenames else ():
        for pid, _ in host.processes():
            os.kill(pid, signal.SIGKILL)
        until(lambda host=host: 8888 not in host.listening())


KNOWING_NAMES = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']
"""Runs a command on host 0 with another file of host names, which follows."""


@pytest.mark.quick("pods_of_kubeflow")
@pytest.mark.parametrize("processes", [services, pods_of_kubernetes, pods_of_kubeflow])
def test_the_containers_of_a_file_train_together(processes, network, tmp_path):
    started = list(processes())
    chief, *others = hosts = network.hosts[:len(started)]
    names = "".join(f"{host.address} {name}\n" for host, (name, *_) in zip(hosts, started, strict=True))
    (tmp_path / "hosts").write_text(names)
    for host, (_, words, env) in zip(others, started[1:], strict=True):
        with host.file("/etc/hosts").open("a") as file:
            file.write(names)
        host.run(command(words), env=clean(**env))
    _, words, env = started[0]
    assert json.loads(env["TF_CONFIG"])["task"]["index"] == 0
    printed = chief.output(*KNOWING_NAMES, tmp_path / "hosts", *command(words), env=clean(**env), timeout=120)
    assert f"on {len(started)} machines" in printed
    assert losses(printed) == alone()


SRUN = """#!/bin/sh
test "$1" = --kill-on-bad-exit=1 && shift
SLURM_NODEID=1 {agent} "$@" >/dev/null 2>&1 &
SLURM_NODEID=0 "$@"
"""
SCONTROL = """#!/bin/sh
test "$*" = "show hostnames $SLURM_JOB_NODELIST" && echo "$SLURM_JOB_NODELIST" | tr , '\\n'
"""


@pytest.mark.quick("2")
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_slurm_script(nodes, network, tmp_path):
    """`srun` starts a task on each node. The list of nodes has no ranges, which SLURM's own `scontrol` writes out."""
    first, second = network.hosts[:2]
    srun = SRUN.format(agent=shlex.join(second.within) if nodes == 2 else "true")
    for name, text in (("srun", srun), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = clean(
        PATH=f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        SLURM_JOB_NODELIST=",".join(host.address for host in (first, second)[:nodes]),
    )
    done = subprocess.run(
        [DOCKER / "slurm.sh", DOCKER / "program.py"], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"on {nodes} machine" in done.stderr
    assert losses(done.stdout) == alone()


def test_the_dockerfile_copies_what_an_installation_needs(tmp_path):
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", "")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    copied = [words.split() for instruction, words in lines if instruction == "COPY"]
    for *sources, target in copied:
        for source in (ROOT / each for each in sources if not target.endswith("program.py")):
            (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / source.name)
    assert ["docker/program.py", "program.py"] in copied and ("CMD", '["python", "program.py"]') in map(tuple, lines)
    assert ["RUN", 'pip install --no-cache-dir "$TENSORFLOW" .'] in lines
    words = "-m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheel ."
    subprocess.run([sys.executable, *words.split()], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "wheel").iterdir()
    sources = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("autodist_*/**/*.py")]
    assert sources and set(sources) <= set(zipfile.ZipFile(wheel).namelist())
    (exposed,) = (words.split() for instruction, words in lines if instruction == "EXPOSE")
    assert f":{exposed[0]}" in (DOCKER / "slurm.sh").read_text()
