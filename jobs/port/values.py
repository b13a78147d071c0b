"""Abstract values: the contents that static analysis infers for a variable."""

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
    """Kinds of contents of a variable."""

    UNKNOWN = auto()
    HOST = auto()
    """Numbers, strings, arrays: nothing on a device."""
    CPU = auto()
    """A tensor, or a batch of them, that has not been moved to the device."""
    DEVICE = auto()
    """A tensor on the device."""
    MASK = auto()
    """A boolean tensor on the device."""
    INPUT = auto()
    """A tensor or an option: an argument of a model, or the result of an unknown call."""
    INDICES = auto()
    """Indices on the host, whose number depends on the data."""
    TENSORS = auto()
    """A list or dictionary of tensors on the device."""
    MODULE = auto()
    """A model, or a part of one."""
    LOADER = auto()
    """A loader of batches on the CPU."""
    DEVICE_LOADER = auto()
    """A loader that moves its batches to the device."""


@dataclass(frozen=True)
class ProgramObject:
    """An instance of a class of the program."""

    class_name: str
    """Name of the class."""


@dataclass(frozen=True)
class Record:
    """A dictionary with known keys."""

    fields: tuple[tuple[str, Value], ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """Values in the order of the keys."""
        return tuple(value for _, value in self.fields)


Value = Content | ProgramObject | Record | tuple["Value", ...]
Env = dict[str, Value]

ON_DEVICE = (Content.DEVICE, Content.MASK)


def join(*values: Value) -> Value:
    """Return the possible contents of a variable after branches with different values."""
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
    """Return a single guess for a value of several parts."""
    while isinstance(value, tuple | Record):
        parts = value if isinstance(value, tuple) else value.values
        is_tensors = isinstance(value, Record) and on_device(value)
        value = Content.TENSORS if is_tensors else join(*parts) if parts else Content.HOST
    return value


def element(value: Value) -> Value:
    """Return the value of an element, as in an iteration."""
    if isinstance(value, tuple | Record):
        parts = value if isinstance(value, tuple) else value.values
        return join(*parts) if parts else Content.HOST
    elements = {
        Content.TENSORS: Content.DEVICE,
        Content.LOADER: Content.CPU,
        Content.DEVICE_LOADER: Content.DEVICE,
        Content.INPUT: Content.INPUT,
    }
    return value if isinstance(value, ProgramObject) else elements.get(value, value)


def on_device(value: Value) -> bool:
    """Return whether a value is or contains a tensor on the device."""
    if isinstance(value, tuple | Record):
        return any(map(on_device, value if isinstance(value, tuple) else value.values))
    return value in (*ON_DEVICE, Content.TENSORS)


def guess(name: str) -> Content:
    """Guess the contents of a variable from its name."""
    if MODULES.search(name):
        return Content.MODULE
    return Content.LOADER if _LOADERS.search(name) else Content.UNKNOWN
