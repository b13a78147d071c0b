"""Models in the bucket, in Hugging Face format, for ``--init-from``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from trainium_catalogue.contract import EXPORT_PREFIX, MODELS_PREFIX
from trainium_catalogue.models.presets import LLAMA_PRESETS, MODELS, PRETRAIN, ModelShape
from trainium_catalogue.parameters.parameter import Value
from trainium_catalogue.parameters.training import DECODER_FIELDS, SHAPE_FIELDS

MODEL_CONFIG = "config.json"
"""File that describes a model, in its weights folder."""
WEIGHTS = "model.safetensors"
"""The weights of a model in a single file."""
WEIGHTS_INDEX = f"{WEIGHTS}.index.json"
"""Maps weights to files, if there are several."""


def model_prefix(value: str) -> str | None:
    """Return the key prefix of ``--init-from``, with a trailing slash; None if it is elsewhere."""
    if value.startswith(("s3://", "/")):
        return None
    return f"{value}/" if value.startswith(EXPORT_PREFIX) else f"{MODELS_PREFIX}{value}/"


def workload_of(document: Mapping[str, Any]) -> str:
    """Return the arguments of ``submit`` that train a config.json's model.

    ``WORKLOAD`` for a model that is not a preset.
    """
    named = dict(LLAMA_PRESETS) | {
        f"{PRETRAIN} --model {name}": preset for name, preset in MODELS.items()
    }
    for submitted, preset in named.items():
        shape = preset.shape
        assert isinstance(shape, ModelShape)
        if document.get("model_type") == shape.family and _describes(document, shape):
            return submitted
    return "WORKLOAD"


def _describes(document: Mapping[str, Any], shape: ModelShape) -> bool:
    """Return whether a config.json matches a shape.

    Models of the same sizes may differ in their rotary embeddings, as Llama 3 and 3.1 do, and nodes
    refuse a different model's weights.
    """
    rope = document.get("rope_parameters")  # transformers 5
    found = {**document, **(rope if isinstance(rope, Mapping) else {})}
    found.setdefault("num_key_value_heads", found.get("num_attention_heads"))
    scaling = document.get("rope_scaling") or rope
    scaling = scaling if isinstance(scaling, Mapping) else {}
    expected = {"factor": None} if shape.rope_scaling is None else asdict(shape.rope_scaling)
    optional = ("rms_norm_eps", "rope_theta", "tie_word_embeddings")
    return (
        all(found.get(field) == getattr(shape, field) for field in SHAPE_FIELDS.values())
        and found.get("head_dim") in (None, shape.head_size)
        and all(found.get(field) in (None, getattr(shape, field)) for field in optional)
        and all(scaling.get(name) == value for name, value in expected.items())
    )


def differing_sizes(document: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, int]:
    """List the sizes in a config.json that differ from a run's parameters, by parameter."""
    found = dict(document)
    # Models without grouped-query attention omit it.
    found.setdefault("num_key_value_heads", found.get("num_attention_heads"))
    return {
        name: found[field]
        for name, field in DECODER_FIELDS.items()
        if name in values and isinstance(found.get(field), int) and found[field] != values[name]
    }
