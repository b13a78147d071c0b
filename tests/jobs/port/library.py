"""Libraries and kernels that need CUDA."""
import bitsandbytes as bnb  # finds library
import torch
from numba import cuda  # finds library
from torch.utils import cpp_extension  # finds library

try:
    from flash_attn import flash_attn_func  # finds library
except ImportError:
    flash_attn_func = None

model = torch.compile(model)  # finds library
model = torch.compile(model, backend="neuron")
model.compile(mode="max-autotune")  # finds library
keras_model.compile(optimizer="adam", loss="mse")
graph = torch.cuda.CUDAGraph()  # finds library
optimizer = torch.optim.AdamW(model.parameters(), fused=True)  # finds library
model = load(
    attn_implementation="flash_attention_2",  # finds library
    load_in_4bit=True,  # finds library
)
arguments = TrainingArguments(optim="paged_adamw_8bit")  # finds library


@torch.compile  # finds library
def step(x):
    return x
