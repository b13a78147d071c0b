"""``--init-from``: start a run from a pretrained model in Hugging Face format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from training.backends.base import WeightPart
from training.checkpoint.pretrained import PretrainedWeights, PretrainedWeightsError, WeightsTable
from training.models.llama.huggingface import decoder_config, meta_model
from training.storage import ObjectMissing, Objects, StorageAccess
from trainium_catalogue.models.in_bucket import MODEL_CONFIG, differing_sizes, model_prefix
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.plan import shape_of
from trainium_catalogue.typed_json import read_object

if TYPE_CHECKING:
    from transformers.configuration_utils import PretrainedConfig

    from training.core.ranks import Ranks

_COMPARED_FIELDS = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps"),
    *("rope_theta", "rope_scaling", "tie_word_embeddings", "attention_bias", "mlp_bias"),
    "use_sliding_window",
)
"""Fields of config.json that affect the model's results."""
_IGNORED = "rotary_emb.inv_freq"
"""A buffer in older files, recomputed from ``rope_theta``."""


class PretrainedModel:
    """Stored weights that match the run's model."""

    def __init__(self, weights: PretrainedWeights, *, uri: str, sha256: str) -> None:
        self._weights, self._uri = weights, uri
        self.sha256 = sha256
        """Hash that identifies the weights."""

    @staticmethod
    def open(
        values: Mapping[str, Value],
        storage: StorageAccess,
        ranks: Ranks,
        *,
        report: Callable[[str], None] = lambda text: None,
    ) -> PretrainedModel:
        """Open the model of ``--init-from``, and refuse a mismatch; every rank must call this."""
        uri = _uri(str(values["init-from"]), storage)
        objects = storage.open(uri)
        report(f"reading the headers of {uri}")
        table, sha256 = ranks.agree(lambda: _check(objects, values))
        read = 0

        def count(num_bytes: int) -> None:
            nonlocal read
            read += num_bytes
            report(f"reading the pretrained weights: {read >> 20} MiB")

        weights = PretrainedWeights(objects, table, on_bytes=count)
        return PretrainedModel(weights, uri=uri, sha256=sha256)

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors read by this rank."""
        return self._weights.bytes_read

    @property
    def line(self) -> str:
        """Log line with the source of the weights and the amount read by this rank."""
        return (
            f"training: started from {self._uri} ({self.sha256[:12]}): this rank read "
            f"{self.bytes_read:,} of {self._weights.table.num_bytes:,} bytes"
        )

    def read(self, part: WeightPart, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Read a part of a weight."""
        return self._weights.read(part.name, offsets=part.offsets, size=part.size, dtype=dtype)


def _uri(value: str, storage: StorageAccess) -> str:
    prefix = model_prefix(value)
    return value if prefix is None else f"{storage.root}/{prefix}".rstrip("/")


def _check(objects: Objects, values: Mapping[str, Value]) -> tuple[WeightsTable, str]:
    """Compare the model in ``objects`` with the run's; return its tensors' locations and hash."""
    ours = decoder_config(shape_of(values), seq_len=int(values["seq-len"]))
    refuse_other_model(_document(objects), ours, values, uri=objects.uri)
    table = WeightsTable.read(objects)
    shapes = {name: tuple(known.size()) for name, known in meta_model(ours).named_parameters()}
    # Some files contain the output projection even if it is tied to the input embedding.
    unused = {"lm_head.weight"} - shapes.keys() if ours.tie_word_embeddings else set()
    needed = {
        name: tensor
        for name, tensor in table.tensors.items()
        if name not in unused and not name.endswith(_IGNORED)
    }
    weights = PretrainedWeights(objects, WeightsTable(tensors=needed, num_bytes=table.num_bytes))
    weights.require(shapes)
    return weights.table, weights.sha256()


def _document(objects: Objects) -> dict[str, Any]:
    try:
        return read_object(objects.get(MODEL_CONFIG))
    except ObjectMissing:
        raise PretrainedWeightsError(
            f"{objects.uri} has no {MODEL_CONFIG}; upload a model's folder with python -m jobs "
            "upload FOLDER, or specify an export: --init-from export/RUN"
        ) from None
    except ValueError:
        raise PretrainedWeightsError(
            f"{objects.uri}/{MODEL_CONFIG} is not a JSON object; upload the folder again"
        ) from None


def refuse_other_model(
    document: Mapping[str, Any], ours: PretrainedConfig, values: Mapping[str, Value], *, uri: str
) -> None:
    """Refuse a model that differs from the run's, naming every different field of config.json."""
    # The class fills in missing fields, as when transformers loads the model.
    theirs = _config_of(type(ours), document, uri)
    differing = {
        name: f"{name}={their} (the run has {mine})"
        for name in _COMPARED_FIELDS
        if (their := _field(theirs, document, name)) != (mine := _field(ours, ours.to_dict(), name))
    }
    if not differing:
        return
    remedy = "start from another model, or submit the workload for this one"
    sizes = differing_sizes(document, values)
    # The remedy need not set a head size that follows from the other sizes.
    usual = theirs.hidden_size // theirs.num_attention_heads
    derived = {"head_dim"} if _field(theirs, document, "head_dim") == usual else set()
    if len(differing.keys() - derived) == len(sizes):
        remedy = "submit with " + " ".join(f"--{name} {size}" for name, size in sizes.items())
    raise PretrainedWeightsError(
        f"{uri} is a different model: {', '.join(differing.values())}; {remedy}"
    )


def _config_of(
    kind: type[PretrainedConfig], document: Mapping[str, Any], uri: str
) -> PretrainedConfig:
    try:
        config = kind(**_to_version_4(document))
        _ = config.hidden_size // config.num_attention_heads, config.to_dict()
    # The class does not validate values, so computing with an invalid one can raise anything.
    except Exception as error:
        raise PretrainedWeightsError(
            f"{uri}: {MODEL_CONFIG} is not the configuration of a model ({type(error).__name__}: "
            f"{error}); upload the folder again"
        ) from None
    return config


def _to_version_4(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert ``rope_parameters``, the only form in transformers 5.0, to version 4's fields.

    Version 4's class ignores ``rope_parameters``, so its default ``rope_theta`` would be compared.
    """
    rope = document.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return document
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    if scaling == {"rope_type": "default"}:
        scaling = {}
    theta = {name: value for name, value in rope.items() if name == "rope_theta"}
    return {**document, **theta, "rope_scaling": scaling or None}


def _field(config: PretrainedConfig, document: Mapping[str, Any], name: str) -> Any:
    # ``model_type`` is a constant of the class, whatever the file contains.
    value = document.get(name) if name == "model_type" else getattr(config, name, None)
    # Llama's class has no ``use_sliding_window``, but keeps any value from the file.
    return value or None if name == "use_sliding_window" else value
