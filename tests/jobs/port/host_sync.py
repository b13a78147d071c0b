"""Copies from the device at every step of a training loop or of functions it calls."""
import math

import torch


class Meter:
    def __init__(self):
        self.sum = 0

    def update(self, value, **others):
        self.sum += value
        for other in others.values():
            self.other = other.item()  # finds host-sync


def accuracy(output, target):
    return (output.argmax(1) == target).sum().item()  # finds host-sync


def log(step, loss):
    print(f"{step} {loss:.3f}")  # finds host-sync


def evaluate(model, loader):
    return sum(model(x.to(device)).mean().item() for x in loader)


def train(model, train_loader, val_loader, epoch):
    total, host_total, losses, meter = 0, 0.0, [], Meter()
    for step, (x, y) in enumerate(train_loader):
        count = y.sum().item()
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss = criterion(out, y)
        if torch.isnan(loss).any():  # finds host-sync
            break
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss
        meter.update(loss, other=loss)
        losses.append(loss)
        metrics = {"loss": loss, "step": step}
        print(f"{metrics['step']}", x.shape, y.size(0))
        if step % 10 == 0:
            host_total += loss.item()  # finds host-sync
            print("loss", float(loss))  # finds host-sync
            print("loss %.3f" % loss)  # finds host-sync
            print("loss {}".format(metrics["loss"]))  # finds host-sync
            print(
                "mean",
                host_total,
                meter.sum,  # finds host-sync
            )
            log(step, loss)
            math.exp(loss)  # finds host-sync
        value = loss.detach().cpu()  # finds host-sync
        number = value.numpy()
        if loss > 3 and step:  # finds host-sync
            accuracy(out, y)
        for name, parameter in model.named_parameters():
            print(name, parameter.grad.norm().item())  # finds host-sync
        if step % 100 == 0:
            for x, y in val_loader:
                print(model(x.to(device)).mean().item())
            evaluate(model, val_loader)
    print(total.item(), epoch, value, number)


for epoch in range(3):
    train(model, loader, loader, epoch)
    print(evaluate(model, loader))


def collected(envs, agent):
    for iteration in range(100):
        for step in range(128):
            action = agent(torch.zeros(8, device=device))
            envs.step(action.cpu().numpy())  # finds host-sync
        for epoch in range(4):
            loss = agent(torch.zeros(8, device=device)).mean()
            loss.backward()
            optimizer.step()
        writer.add_scalar("loss", loss.item(), iteration)  # finds host-sync


def scaled(model, train_loader):
    optimizer.zero_grad()
    for x in train_loader:
        loss = model(x.to(device))
        value = loss.item()  # finds host-sync
        loss_scaler(loss, optimizer)
        optimizer.zero_grad()
