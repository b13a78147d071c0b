"""What a variable may hold, as far as the text of a program shows it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

LOSS = re.compile(r"(^|_)(loss|losses|logits|criterion|cross_entropy)(_|\d*$)", re.IGNORECASE)
MODULES = re.compile(
    r"(^|_)(model|net|network|module|encoder|decoder|generator|discriminator|critic|actor|policy"
    r"|criterion|loss_fn|loss_func|loss_function|agent|unet|vae|gan|backbone|classifier|head|ddp"
    r"|net[GD]|teacher|student|q_network|target_network)s?(_?[A-Z0-9]?\w?)?$"
)
_LOADERS = re.compile(r"load|_dl$|^dl$|data_?iter|batches|dataset", re.IGNORECASE)


class Content(Enum):
    """What a variable may hold."""

    UNKNOWN = auto()
    HOST = auto()
    """Numbers, strings, arrays: nothing of a device."""
    CPU = auto()
    """A tensor, or a batch of them, that has not been moved."""
    DEVICE = auto()
    MASK = auto()
    """A tensor of booleans on the device."""
    INPUT = auto()
    """What may be a tensor or an option: an argument of a model, or what an unknown call gives."""
    INDICES = auto()
    """Positions on the host, as many as the data has."""
    TENSORS = auto()
    """A list or dictionary of tensors on the device."""
    MODULE = auto()
    LOADER = auto()
    DEVICE_LOADER = auto()
    """A loader whose batches are moved by a library."""


@dataclass(frozen=True)
class ProgramObject:
    """An object of a class of the program."""

    of: str


@dataclass(frozen=True)
class Record:
    """A dictionary with known keys."""

    fields: tuple[tuple[str, Value], ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """What it holds, in the order of its keys."""
        return tuple(value for _, value in self.fields)


Value = Content | ProgramObject | Record | tuple["Value", ...]
Env = dict[str, Value]

ON_DEVICE = (Content.DEVICE, Content.MASK)


def join(*values: Value) -> Value:
    """Return what a variable may hold that one branch gives this, another that."""
    known = [value for value in values if value is not Content.UNKNOWN]
    if not known:
        return Content.UNKNOWN
    first = known[0]
    if all(value == first for value in known):
        return first
    tuples = [value for value in known if isinstance(value, tuple)]
    if len(tuples) == len(known) and len({len(value) for value in tuples}) == 1:
        return tuple(join(*items) for items in zip(*tuples, strict=True))
    flat = [flattened(value) for value in known]
    for held in (
        Content.DEVICE, Content.MASK, Content.TENSORS, Content.INPUT, Content.MODULE, Content.CPU,
        Content.DEVICE_LOADER, Content.LOADER,
    ):  # fmt: skip
        if held in flat:
            return held
    return next((value for value in flat if isinstance(value, ProgramObject)), Content.HOST)


def flattened(value: Value) -> Content | ProgramObject:
    """Return one guess for a value of several parts."""
    while isinstance(value, tuple | Record):
        parts = value if isinstance(value, tuple) else value.values
        is_tensors = isinstance(value, Record) and on_device(value)
        value = Content.TENSORS if is_tensors else join(*parts) if parts else Content.HOST
    return value


def element(value: Value) -> Value:
    """Return what iterating, or an index, gives."""
    if isinstance(value, tuple | Record):
        parts = value if isinstance(value, tuple) else value.values
        return join(*parts) if parts else Content.HOST
    steps = {
        Content.TENSORS: Content.DEVICE,
        Content.LOADER: Content.CPU,
        Content.DEVICE_LOADER: Content.DEVICE,
        Content.INPUT: Content.INPUT,
    }
    return value if isinstance(value, ProgramObject) else steps.get(value, value)


def on_device(value: Value) -> bool:
    """Tell whether a value is a tensor of the device, or holds one."""
    if isinstance(value, tuple | Record):
        return any(map(on_device, value if isinstance(value, tuple) else value.values))
    return value in (*ON_DEVICE, Content.TENSORS)


def guess(name: str) -> Content:
    """Guess from a name what a variable holds."""
    if MODULES.search(name):
        return Content.MODULE
    return Content.LOADER if _LOADERS.search(name) else Content.UNKNOWN
