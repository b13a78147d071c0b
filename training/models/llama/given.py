"""``--init-from``: a model of Hugging Face's layout that a run begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from training.backends.base import WeightPart
from training.checkpoint.given import GivenTable, GivenWeights, GivenWeightsError
from training.models.llama.huggingface import llama_config, meta_model
from training.storage import ObjectMissing, Objects, StorageAccess
from trainium_catalogue.models.in_bucket import MODEL_CONFIG, differing_sizes, model_prefix
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import shape_of
from trainium_catalogue.typed_json import read_object

if TYPE_CHECKING:
    from transformers.configuration_utils import PretrainedConfig

    from training.core.ranks import Ranks

_SAME = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps"),
    *("rope_theta", "rope_scaling", "tie_word_embeddings", "attention_bias", "mlp_bias"),
    "use_sliding_window",
)
"""Fields of config.json that change what the weights compute."""
_IGNORED = "rotary_emb.inv_freq"
"""A buffer that old files hold and that is computed from ``rope_theta``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What rank 0 has read and checked."""

    table: GivenTable
    sha256: str


class GivenModel:
    """The weights of a model in storage, which fit the run's."""

    def __init__(self, weights: GivenWeights, *, uri: str, sha256: str) -> None:
        self._weights, self._uri = weights, uri
        self.sha256 = sha256
        """Identifies the weights."""

    @staticmethod
    def open(
        values: Mapping[str, Value],
        storage: StorageAccess,
        ranks: Ranks,
        *,
        report: Callable[[str], None] = lambda text: None,
    ) -> GivenModel:
        """All ranks: find the model of ``--init-from``; ``GivenWeightsError`` if it is another."""
        uri = _uri(str(values["init-from"]), storage)
        objects = storage.open(uri)
        report(f"reading the headers of {uri}")
        found = ranks.agree(lambda: _checked(objects, values))
        read = 0

        def count(num_bytes: int) -> None:
            nonlocal read
            read += num_bytes
            report(f"reading the weights to begin with: {read >> 20} MiB")

        weights = GivenWeights(objects, found.table, on_bytes=count)
        return GivenModel(weights, uri=uri, sha256=found.sha256)

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors that this rank has read."""
        return self._weights.bytes_read

    @property
    def line(self) -> str:
        """Say where the weights came from, and how much of them this rank has read."""
        return (
            f"training: began with {self._uri} ({self.sha256[:12]}): this rank read "
            f"{self.bytes_read:,} of {self._weights.table.num_bytes:,} bytes"
        )

    def read(self, part: WeightPart, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Read a part of a weight."""
        return self._weights.read(part.name, offsets=part.offsets, size=part.size, dtype=dtype)


def _uri(value: str, storage: StorageAccess) -> str:
    prefix = model_prefix(value)
    return value if prefix is None else f"{storage.root}/{prefix}".rstrip("/")


def _checked(objects: Objects, values: Mapping[str, Value]) -> _Found:
    """Compare the model in ``objects`` with the run's; returns where its tensors lie."""
    ours = llama_config(shape_of(values), seq_len=int(values["seq-len"]))
    refuse_other_model(_document(objects), ours, values, uri=objects.uri)
    table = GivenTable.read(objects)
    shapes = {name: tuple(known.size()) for name, known in meta_model(ours).named_parameters()}
    # Some files hold the output projection although it is the input embedding.
    unused = {"lm_head.weight"} - shapes.keys() if ours.tie_word_embeddings else set()
    needed = {
        name: tensor
        for name, tensor in table.tensors.items()
        if name not in unused and not name.endswith(_IGNORED)
    }
    weights = GivenWeights(objects, GivenTable(tensors=needed, num_bytes=table.num_bytes))
    weights.require(shapes)
    return _Found(table=weights.table, sha256=weights.sha256())


def _document(objects: Objects) -> dict[str, Any]:
    try:
        return read_object(objects.get(MODEL_CONFIG))
    except ObjectMissing:
        raise GivenWeightsError(
            f"{objects.uri} has no {MODEL_CONFIG}; upload a model's folder with python -m jobs "
            "upload FOLDER, or name an export: --init-from export/RUN"
        ) from None
    except ValueError:
        raise GivenWeightsError(
            f"{objects.uri}/{MODEL_CONFIG} is no JSON object; upload the folder anew"
        ) from None


def refuse_other_model(
    document: Mapping[str, Any], ours: PretrainedConfig, values: Mapping[str, Value], *, uri: str
) -> None:
    """Name every field of config.json in which the model is not the run's."""
    # The class fills in what the file leaves out, as transformers does when it loads it.
    theirs = _config_of(type(ours), document, uri)
    differing = {
        name: f"{name}={their} (the run has {mine})"
        for name in _SAME
        if (their := _field(theirs, document, name)) != (mine := _field(ours, ours.to_dict(), name))
    }
    if not differing:
        return
    remedy = "begin with another model, or submit the workload that is this one's"
    sizes = differing_sizes(document, values)
    # In most models the other sizes decide how large a head is.
    usual = theirs.hidden_size // theirs.num_attention_heads
    derived = {"head_dim"} if _field(theirs, document, "head_dim") == usual else set()
    if len(differing.keys() - derived) == len(sizes):
        remedy = "submit with " + " ".join(f"--{name} {size}" for name, size in sizes.items())
    raise GivenWeightsError(f"{uri} is another model: {', '.join(differing.values())}; {remedy}")


def _config_of(
    kind: type[PretrainedConfig], document: Mapping[str, Any], uri: str
) -> PretrainedConfig:
    try:
        found = kind(**_before_5(document))
        _ = found.hidden_size // found.num_attention_heads, found.to_dict()
    except Exception as error:  # the class sets whatever it is given, and computes with some
        raise GivenWeightsError(
            f"{uri}: {MODEL_CONFIG} is not the configuration of a model ({type(error).__name__}: "
            f"{error}); upload the folder again"
        ) from None
    return found


def _before_5(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write ``rope_parameters`` as transformers 4 does (5.0, ``LlamaConfig``: there is no other).

    The class of 4 ignores it, and would compare its own default for ``rope_theta``.
    """
    rope = document.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return document
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    if scaling == {"rope_type": "default"}:
        scaling = {}
    theta = {name: value for name, value in rope.items() if name == "rope_theta"}
    return {**document, **theta, "rope_scaling": scaling or None}


def _field(theirs: PretrainedConfig, document: Mapping[str, Any], name: str) -> Any:
    # transformers has its own, of the class.
    found = document.get(name) if name == "model_type" else getattr(theirs, name, None)
    # Llama's class does not know it, and keeps whatever a file says.
    return found or None if name == "use_sliding_window" else found
