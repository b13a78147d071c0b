"""A minimal program of your own: it trains in all processes on all nodes, and resumes.

All it needs from its environment are torchrun's variables, and a folder to save in. On CPU:
torchrun --nproc-per-node 2 train.py --epochs 20
"""

import argparse
import importlib.util
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--seconds", type=float, default=0.1, help="minimum duration of an epoch")
options = parser.parse_args()

if importlib.util.find_spec("torch_xla"):
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.xla_backend  # noqa: F401, registers the backend

    dist.init_process_group("xla")
    device = xm.xla_device()
elif importlib.util.find_spec("torch_neuronx"):  # images with torch_xla contain this name too
    import torch_neuronx  # noqa: F401, registers the device

    xm = None
    # Before any tensor is on the device: the group binds this process to its core.
    dist.init_process_group("cpu:gloo,neuron:neuron")
    device = torch.device("neuron")
else:
    xm = None
    dist.init_process_group("gloo")
    device = torch.device("cpu")
rank, ranks = dist.get_rank(), dist.get_world_size()
if rank == 0:
    print(f"trains on {device.type}", flush=True)

torch.manual_seed(0)
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
checkpoint = Path(os.environ.get("TRAINIUM_CHECKPOINT_DIR", ".")) / "latest.pt"
begin = 0
if checkpoint.exists():
    saved = torch.load(checkpoint, map_location="cpu")
    model.load_state_dict(saved["model"])
    begin = saved["epoch"]
    if rank == 0:
        print(f"continues after epoch {begin}", flush=True)

for epoch in range(begin + 1, options.epochs + 1):
    generator = torch.Generator().manual_seed(epoch * ranks + rank)
    x = torch.randn(64, 8, generator=generator).to(device)
    loss = mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks
    optimizer.step()
    if xm is not None:
        xm.mark_step()
    time.sleep(options.seconds)
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.6f}", flush=True)
        weights = {name: value.cpu() for name, value in model.state_dict().items()}
        # Written to another name, then renamed: a partial file is never visible.
        partial = checkpoint.with_suffix(".partial")
        torch.save({"model": weights, "epoch": epoch}, partial)
        partial.replace(checkpoint)
dist.destroy_process_group()
