"""What runs of a peer on one of the hosts: a worker that trains with the first one, or a server of TensorFlow.

    python benchmarks/follower.py '{"contender": "multi_worker", "role": "worker", "job": {...}}'

`hosts.py` starts it in each host of the test network, and ends the servers.
"""

import json
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from contenders import CONTENDERS, PARAMETER_SERVER, tasks
from options import command
from turns import Job, Turns


def serve(job: Job, role: str) -> None:
    """Serve as a task of the ParameterServerStrategy, until the process is ended."""
    import tensorflow as tf

    server = tf.distribute.Server(
        tf.train.ClusterSpec(tasks(job)), job_name=role, task_index=job.rank, protocol="grpc", start=True
    )
    server.join()


def main() -> None:
    """Run the program that the argument describes."""
    parser = command(__doc__)
    parser.add_argument("program", type=json.loads, help="the contender, its role and the fields of its job, as JSON")
    given = parser.parse_args().program
    job = Job(**given["job"])
    if given["contender"] == PARAMETER_SERVER:
        serve(job, given["role"])
    else:
        CONTENDERS[given["contender"]](job, Turns(job.steps))


if __name__ == "__main__":
    main()
