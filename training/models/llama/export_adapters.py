"""Export a run's adapters in PEFT's layout, or merged into the pretrained weights.

PEFT's layout (peft 0.17, utils/save_and_load.py) is ``adapter_config.json`` and
``adapter_model.safetensors``, with the model's own names after a prefix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from training.backends.base import WeightPart
from training.checkpoint import CheckpointInfo
from training.checkpoint.weights import Weights
from training.models.llama.huggingface import decoder_config, meta_model
from training.models.llama.lora import DOWN, UP, attach, is_adapter
from training.models.llama.pretrained import PretrainedModel
from training.storage import Objects
from trainium_catalogue.models.presets import Shape
from trainium_catalogue.parameters.lora import Lora

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


def read_adapters(
    source: Objects,
    info: CheckpointInfo,
    *,
    shape: Shape,
    lora: Lora,
    on_bytes: Callable[[int], None],
) -> dict[str, torch.Tensor]:
    """Read the adapters of the checkpoint in ``source``, in fp32, keyed by this project's names."""
    model = meta_model(decoder_config(shape, seq_len=8))
    attach(model, lora, None)
    shapes = {name: p.size() for name, p in model.named_parameters() if is_adapter(name)}
    return Weights(source, info, shapes=shapes, on_bytes=on_bytes).read(list(shapes), torch.float32)


def write_adapters(
    adapters: Mapping[str, torch.Tensor],
    lora: Lora,
    *,
    base: str,
    dtype: str,
    folder: Path,
    finished: Callable[[Path], None],
) -> None:
    """Write adapters for ``PeftModel.from_pretrained`` to load on top of the model ``base``."""
    from safetensors.torch import save_file

    kind: torch.dtype = getattr(torch, dtype)
    named = {f"{_PREFIX}{name}": weight.to(kind) for name, weight in adapters.items()}
    save_file(named, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    finished(folder / ADAPTER_WEIGHTS)
    document: dict[str, Any] = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": list(lora.targets),
        "task_type": "CAUSAL_LM",
    }
    path = folder / ADAPTER_CONFIG
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    finished(path)


class MergedWeights:
    """The pretrained weights merged with the adapters, read a few tensors at a time."""

    def __init__(
        self,
        pretrained: PretrainedModel,
        adapters: Mapping[str, torch.Tensor],
        lora: Lora,
        *,
        shapes: Mapping[str, torch.Size],
    ) -> None:
        self._pretrained, self._adapters, self._lora = pretrained, adapters, lora
        self._shapes = shapes

    def read(self, names: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Read full tensors to the host, holding only one at a time in fp32."""
        return {name: self._merge(name).to(dtype) for name in names}

    def _merge(self, name: str) -> torch.Tensor:
        weight = self._pretrained.read(WeightPart.entire(name, self._shapes[name]))
        module = name.removesuffix(".weight")
        up = self._adapters.get(f"{module}.{UP}.weight")
        if up is None:
            return weight
        return weight + self._lora.scale * (up @ self._adapters[f"{module}.{DOWN}.weight"])
