"""Memory pinned for CUDA."""
import torch

settings = {"num_workers": 2, "pin_memory": True}  # finds pin_memory
settings["pin_memory"] = use_cuda  # finds pin_memory
loader = DataLoader(data, batch_size=1, pin_memory=use_cuda)  # finds pin_memory
loader = DataLoader(data, batch_size=1, pin_memory=False)
x = torch.zeros(8).pin_memory()  # finds pin_memory


def loader_of(data, pin_memory=True):  # finds pin_memory
    return DataLoader(data, batch_size=1)
