"""The same networks in torch, trained by DistributedDataParallel over gloo: a peer of the benchmarks.

In: a `Job` over hosts. Each host trains on its part of the batches. `MODELS` names the workloads that exist in torch.
"""

import os
from collections.abc import Callable
from typing import Any

from turns import Job, Turns
from workloads import BATCH, CLASSES, WORKLOADS

MODELS = ("mlp", "cnn")


def _network(name: str) -> Any:
    from torch import nn

    if name == "mlp":
        hidden = [layer for _ in range(32) for layer in (nn.Linear(512, 512), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(512, CLASSES))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(32 * 13 * 13, 2048), nn.ReLU(), nn.Linear(2048, CLASSES),
    )  # fmt: skip


def _optimizer(name: str) -> Callable[[Any], Any]:
    from torch import optim

    return (lambda it: optim.Adam(it, lr=1e-4)) if name == "mlp" else (lambda it: optim.SGD(it, lr=0.01))


def train(job: Job, turns: Turns) -> None:
    """Train on the batches of this host, as long as the job says."""
    os.environ["GLOO_SOCKET_IFNAME"] = job.interface
    import numpy as np
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group(
        "gloo", init_method=f"tcp://{job.hosts[0]}:{job.port}", rank=job.rank, world_size=len(job.hosts)
    )
    torch.manual_seed(0)
    x, y = (torch.from_numpy(np.asarray(each)) for each in WORKLOADS[job.workload].arrays())
    if job.workload == "cnn":
        x = x.permute(0, 3, 1, 2).contiguous()
    model = DistributedDataParallel(_network(job.workload))
    optimizer = _optimizer(job.workload)(model.parameters())
    compare = torch.nn.CrossEntropyLoss()
    part = BATCH // len(job.hosts)
    for epoch in range(job.epochs):
        turns.begin(epoch)
        for step in range(job.steps):
            begin = step * BATCH % len(x) + job.rank * part
            optimizer.zero_grad()
            compare(model(x[begin : begin + part]), y[begin : begin + part]).backward()
            optimizer.step()
        turns.end(epoch)
    distributed.destroy_process_group()
