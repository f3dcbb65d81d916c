"""The TensorFlow server of one node: it starts with a filter, so that only the nodes of its cluster can connect.

Importing this module imports TensorFlow; the agent does so when all nodes have reached each other.
"""

import os

from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.training.server_lib import ClusterSpec
from tensorflow.python.training.server_lib import Server as TensorFlowServer

from autodist_core.cluster.on_node.admission import admit_only

_PROXY = "grpc_proxy"
_THREADS = "TF_NUM_INTRAOP_THREADS"
"""TensorFlow's own variable for the number of threads of one operation."""


def start_server(job: str, task: int, tasks: list[str], cpus: int, admitted: list[str]) -> TensorFlowServer:
    """Start the server of one task of a cluster. TensorFlow cannot stop a server: it ends with its process.

    `tasks` holds the address of each task as "host:port", and `task` is the position of this one. The server has `cpus`
    CPU devices, and only the addresses `admitted` can connect to it.
    """
    # Without this, gRPC would connect to the other nodes through the environment's http_proxy. Only gRPC reads it.
    os.environ[_PROXY] = ""
    config = server_config(job, cpus)
    server = TensorFlowServer(ClusterSpec({job: tasks}), job_name=job, task_index=task, config=config, start=False)
    admit_only(int(tasks[task].rpartition(":")[2]), admitted)
    server.start()
    return server


def server_config(job: str, cpus: int) -> ConfigProto:
    """Return the configuration of a server with so many CPU devices.

    If the node has no more cores than that, each operation runs on one thread: each core has a replica to compute.

    >>> cores = len(os.sched_getaffinity(0))
    >>> [server_config("run", cpus).intra_op_parallelism_threads for cpus in (1, cores + 1)]
    [0, 1]
    """
    config = ConfigProto(device_count={"CPU": cpus}, allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    # Collectives across tasks wait for ever unless the servers and the session name the same leader.
    config.experimental.collective_group_leader = f"/job:{job}/replica:0/task:0"
    if 1 < cpus >= len(os.sched_getaffinity(0)) and _THREADS not in os.environ:
        config.intra_op_parallelism_threads = 1
    return config
