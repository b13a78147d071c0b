"""16-bit and 64-bit types, and gradient scaling for the former."""
import numpy as np
import torch
from torch.cuda.amp import GradScaler, autocast  # finds dtype

half = torch.float16  # finds dtype
model = torch.nn.Linear(8, 8).half()  # finds dtype
wide = torch.zeros(8, dtype=torch.float64)  # finds dtype
fine = np.zeros(8, dtype=np.float64), np.float16(3), torch.bfloat16
wide = wide.double()  # finds dtype
scaler = GradScaler()  # finds dtype
with autocast():  # finds dtype
    pass
with torch.autocast("cuda", dtype=torch.bfloat16):  # finds dtype
    pass
with torch.autocast(
    device_type="cuda",  # finds dtype
    dtype=torch.half,  # finds dtype
):
    pass
settings = {"precision": "fp16"}  # finds dtype
if settings["precision"] in ("fp16", "bf16"):
    print("fp16")
trainer = Trainer(fp16=True, precision=32)  # finds dtype
trainer = Trainer(fp16=False)
