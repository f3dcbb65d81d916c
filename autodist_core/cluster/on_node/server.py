"""A TensorFlow server on one node, which admits the nodes of its cluster only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.training.server_lib import ClusterSpec
from tensorflow.python.training.server_lib import Server as TensorFlowServer

from autodist_core.cluster.on_node.admission import admit_only

_PROXY = "grpc_proxy"


@dataclass(frozen=True)
class Server:
    """A running server; it cannot be stopped, only its process ended."""

    server: Any
    strangers: int
    """How many had connected whom the cluster does not know, in the moment before the filter was there."""


def start(job: str, task: int, tasks: list[str], cpus: int, admitted: list[str]) -> Server:
    """Start the server of one task of the cluster `tasks` ("host:port" each), with so many CPU devices."""
    # gRPC would ask the http_proxy of the environment for the way to the other nodes. Empty means none, for gRPC alone.
    os.environ[_PROXY] = ""
    config = ConfigProto(device_count={"CPU": cpus}, allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    # Without a leader, and the same one in the session's config, collectives across tasks wait for ever.
    config.experimental.collective_group_leader = f"/job:{job}/replica:0/task:0"
    server = TensorFlowServer(ClusterSpec({job: tasks}), job_name=job, task_index=task, config=config, start=False)
    strangers = admit_only(int(tasks[task].rpartition(":")[2]), admitted)
    server.start()
    return Server(server, strangers)
