"""Shapes that depend on the data, in the path of training."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def forward(self, x, flag=False):
        if flag:
            x = x * 2
        return x[x > 0]  # finds dynamic-shape


class PostProcess(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return x[x > 0]


def accuracy(output, target, keep):
    return (output[keep] == target[keep]).float().mean()  # finds dynamic-shape


def cleaned(rows):
    return rows[rows > 0]


def collate(batch):
    return tokenizer(
        batch,
        padding=True,  # finds dynamic-shape
        max_length=128,
    )


tokens = tokenizer(texts, padding="max_length", max_length=128)
each = [tokenizer(text, padding="longest") for text in texts]
collator = DataCollatorWithPadding(tokenizer)  # finds dynamic-shape
collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)
batch_settings = {"batch_size": 8, "drop_last": True}
train_loader = DataLoader(  # finds dynamic-shape
    train_set,
    batch_size=8,
)
full_loader = DataLoader(train_set, **batch_settings)
val_loader = DataLoader(val_set, batch_size=8)
single_loader = DataLoader(train_set, batch_size=1)
counted = DataLoader(train_set, batch_size=8)
steps = len(counted)
mean = cleaned(np.array([1, 2]))
model = Net().to(device)
for x, y in train_loader:
    x, y = x.to(device), y.to(device)
    out = model(x)
    mask = y != -100
    positions = torch.where(mask)  # finds dynamic-shape
    kept = out[mask]  # finds dynamic-shape
    kept = torch.where(mask, out, 0)
    rows = np.nonzero(host > 0)
    chosen = out[rows]  # finds dynamic-shape
    numbers = out.unique()  # finds dynamic-shape
    accuracy(out, y, ~mask)
    first = out[:, 0], out[y]
    loss = criterion(kept, y)
    loss.backward()
    optimizer.step()
