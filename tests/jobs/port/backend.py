"""Backends of the process group."""
import argparse
import os

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="nccl", help="nccl or gloo")  # finds backend
args = parser.parse_args()
os.environ["NCCL_DEBUG"] = "INFO"  # finds backend
os.environ.setdefault("NCCL_IB_DISABLE", "1")  # finds backend
print(os.environ.get("NCCL_DEBUG"))
if args.backend == "nccl":
    print("nccl")
dist.init_process_group(
    init_method="env://",
    backend="cpu:gloo,cuda:nccl",  # finds backend
)
