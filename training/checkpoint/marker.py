"""The marker of a complete checkpoint: ``complete.json``, written last, with all checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

from trainium_catalogue.contract import CHECKPOINT_MARKER, checkpoint_name
from trainium_catalogue.documents import OPTIONAL, Keywords, Natural, Positive, Sha256, Timestamp
from trainium_catalogue.safe_folder import path_parts
from trainium_catalogue.typed_json import read_object, typed

CHUNK_BYTES = 8 * 1024 * 1024
"""Unit of verification, and therefore the smallest read."""
_SCHEMA = 1
_FORMAT = "dcp"
"""The only format, torch.distributed.checkpoint; part of the published schema."""
_RESERVED = ("schema", "format", "step", "time", "files")
"""JSON fields that the trainer does not set."""


class CheckpointDamaged(Exception):
    """A checkpoint is incomplete, or one of its files is missing, truncated or altered."""


class CheckpointUnusable(ValueError):
    """A run has checkpoints, but none can be loaded into this model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedFile:
    """A file in a marker's JSON."""

    bytes: Natural
    chunk_bytes: Positive
    crc32: tuple[Annotated[int, Keywords(minimum=0, maximum=2**32 - 1)], ...]
    """CRC-32 of each chunk, in order."""

    def __post_init__(self) -> None:
        if self.bytes < 0 or self.chunk_bytes <= 0:
            raise ValueError(f"{self.bytes} bytes in chunks of {self.chunk_bytes} is impossible")
        # No checksums if they were never computed.
        if self.crc32 and len(self.crc32) != -(-self.bytes // self.chunk_bytes):
            raise ValueError(f"it has {len(self.crc32)} checksums for {self.bytes} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A marker's JSON; the optional fields, and any others, are the trainer's."""

    schema: Annotated[int, Keywords(const=1)]
    format: Annotated[str, Keywords(enum=["dcp"])]
    """dcp: torch.distributed.checkpoint, loadable on any topology and with PyTorch's own tools."""
    step: Natural
    """Number of optimizer steps completed."""
    time: Timestamp
    """Time of completion."""
    files: Annotated[Mapping[str, MarkedFile], Keywords(minProperties=1)]
    """Every other file, by its path relative to the folder."""
    run: str | None = field(default=None, metadata=OPTIONAL)
    model: Mapping[str, Any] | None = field(default=None, metadata=OPTIONAL)
    """The model's shape, named as in Hugging Face's config.json; family is model_type."""
    tokenizer_sha256: Sha256 | None = field(default=None, metadata=OPTIONAL)
    world_size: Positive | None = field(default=None, metadata=OPTIONAL)
    tensor_parallel: Positive | None = field(default=None, metadata=OPTIONAL)
    data_parallel: Positive | None = field(default=None, metadata=OPTIONAL)
    tokens_total: Natural | None = field(default=None, metadata=OPTIONAL)
    position: Natural | None = field(default=None, metadata=OPTIONAL)
    """Number of samples consumed so far, in data order; the next step begins there."""
    evaluated: bool | None = field(default=None, metadata=OPTIONAL)
    """False if the evaluation due after the step was abandoned; a resumed run evaluates first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One complete checkpoint."""

    step: int
    """Number of optimizer steps completed."""
    meta: Mapping[str, Any]
    """Metadata from the trainer: model, tokenizer_sha256, world_size, tokens_total, ..."""
    files: Mapping[str, MarkedFile]
    time: str
    """Time of completion, ISO 8601."""

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder."""
        return checkpoint_name(self.step)

    @property
    def num_bytes(self) -> int:
        """Total size of all files."""
        return sum(known.bytes for known in self.files.values())

    def refuse_other(
        self,
        *,
        model: Mapping[str, Any],
        tokenizer_sha256: str | None,
        assumed: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Raise ``CheckpointUnusable`` unless model and tokenizer (if known) match.

        ``assumed`` provides defaults for model fields that earlier releases did not write.
        """
        mine = self.meta.get("model")
        mine = None if mine is None else {**assumed, **mine}
        if mine is not None and mine != dict(model):
            differing = [
                f"{name}={mine.get(name)} (now {model.get(name)})"
                for name in sorted({*mine, *model})
                if mine.get(name) != model.get(name)
            ]
            raise CheckpointUnusable(
                f"checkpoint {self.name} belongs to another model: {', '.join(differing)}; use "
                "another run name for another model"
            )
        made_with = self.meta.get("tokenizer_sha256")
        if made_with is None or tokenizer_sha256 is None:
            return
        if made_with != tokenizer_sha256:
            raise CheckpointUnusable(
                f"checkpoint {self.name} was trained with tokenizer {made_with[:12]}, but the "
                f"dataset has {tokenizer_sha256[:12]}; continue with the run's own dataset, or use "
                "another run name"
            )

    def dump(self) -> bytes:
        """Encode the marker."""
        document = {
            **self.meta,
            "schema": _SCHEMA,
            "format": _FORMAT,
            "step": self.step,
            "time": self.time,
            "files": {name: asdict(known) for name, known in sorted(self.files.items())},
        }
        return json.dumps(document, indent=1).encode() + b"\n"

    @staticmethod
    def parse(data: bytes, *, folder: str) -> CheckpointInfo:
        """Parse a marker; raise ``CheckpointDamaged`` if it is invalid."""
        try:
            document = read_object(data)
            schema, kind = document.get("schema"), document.get("format")
            if (schema, kind) != (_SCHEMA, _FORMAT):
                raise CheckpointDamaged(
                    f"{CHECKPOINT_MARKER} has schema {schema} and format {kind}, which this "
                    "version does not support"
                )
            marker = typed(document, Marker)
            for name in marker.files:
                path_parts(name)
            info = CheckpointInfo(
                step=marker.step,
                time=marker.time,
                files=marker.files,
                meta={name: value for name, value in document.items() if name not in _RESERVED},
            )
        except ValueError as error:
            raise CheckpointDamaged(f"{CHECKPOINT_MARKER} cannot be read: {error}") from None
        if info.name != folder:
            raise CheckpointDamaged(f"{CHECKPOINT_MARKER} belongs to {info.name}")
        return info
