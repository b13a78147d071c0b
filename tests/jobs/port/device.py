"""Devices: names of CUDA devices, and queries about them."""
import argparse
import os

import torch
import torch.backends.cudnn as cudnn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description="cuda")
parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])  # finds device
parser.add_argument("--gpu", help="cuda")
args = parser.parse_args()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")  # finds device
other = f"cuda:{args.gpu}"  # finds device
third = "cuda:{}".format(args.gpu)  # finds device
os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # finds device
cudnn.benchmark = True  # finds device
model = (
    torch.nn.Linear(8, 8)
    .cuda()  # finds device
)
model = DDP(
    model,
    device_ids=[args.gpu],  # finds device
    output_device=args.gpu,  # finds device
)
model = DDP(model, device_ids=None)
model = torch.nn.DataParallel(model)  # finds device
torch.cuda.set_device(args.gpu)  # finds device
if device.type == "cuda":  # finds device
    print("training on cuda")
raise RuntimeError("no cuda device was found")


def place(x: torch.cuda.FloatTensor, where="cuda"):  # finds device
    """Place on cuda."""
    return x.to(where)
