"""A small program of a user: trains a line on any number of processes, and resumes.

It uses one variable of this project, the folder for its checkpoint.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seconds", type=float, default=0.05, help="time of an epoch")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
checkpoint = Path(os.environ.get("TRAINIUM_CHECKPOINT_DIR", ".")) / "latest.pt"
begin = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["epoch"]
    if dist.get_rank() == 0:
        print(f"continues after epoch {begin}", flush=True)

for epoch in range(begin + 1, options.epochs + 1):
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(epoch))
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(options.seconds)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.6f}", flush=True)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        partial = checkpoint.with_suffix(".partial")
        torch.save({**state, "epoch": epoch}, partial)
        partial.replace(checkpoint)
dist.destroy_process_group()
