"""Hugging Face's layout: safetensors of at most some size, configuration, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from training.checkpoint.weights import Weights
from training.models.llama.model import llama_config, meta_model

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo
    from training.storage import Objects
    from trainium_catalogue.models import Shape

Finished = Callable[[Path], None]
"""Takes a file that is complete, and may remove it."""


def write_model(
    source: Objects,
    info: CheckpointInfo,
    *,
    shape: Shape,
    seq_len: int,
    eos_id: int | None,
    dtype: str,
    max_file_size: str,
    folder: Path,
    finished: Finished,
    on_bytes: Callable[[int], None],
) -> None:
    """Write the model of the checkpoint in ``source`` to ``folder``, a file at a time.

    ``CheckpointDamaged`` where its bytes are wrong, ``CheckpointUnusable`` where it is not of that
    shape. In memory is one file's worth of tensors, in ``dtype``.
    """
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file
    from transformers.generation.configuration_utils import GenerationConfig

    kind: torch.dtype = getattr(torch, dtype)
    config = llama_config(shape, seq_len=seq_len)
    model = meta_model(config).to(kind)
    whole = {name: parameter.detach() for name, parameter in model.named_parameters()}
    shapes = {name: tensor.shape for name, tensor in whole.items()}
    weights = Weights(source, info, shapes=shapes, on_bytes=on_bytes)
    plan = split_torch_state_dict_into_shards(
        whole, filename_pattern="model{suffix}.safetensors", max_shard_size=max_file_size
    )
    for file, names in plan.filename_to_tensors.items():
        save_file(weights.read(names, kind), folder / file, metadata={"format": "pt"})
        finished(folder / file)
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        _write_json(folder / "model.safetensors.index.json", index, finished)
    if eos_id is not None:
        config.eos_token_id = eos_id
    config.use_cache = True  # for generation; training has no use for one
    config.architectures = ["LlamaForCausalLM"]
    # transformers has written "dtype" since 4.56; whoever is older reads "torch_dtype".
    document = {**config.to_diff_dict(), "dtype": dtype, "torch_dtype": dtype}
    _write_json(folder / "config.json", document, finished)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    finished(folder / "generation_config.json")


def _write_json(path: Path, document: Mapping[str, Any], finished: Finished) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    finished(path)


def write_tokenizer(text: str, *, eos_id: int, bos: bool, folder: Path, finished: Finished) -> None:
    """Write a tokenizer that gives the ids that training saw; ``text`` is its tokenizer.json."""
    from transformers.tokenization_utils_fast import PreTrainedTokenizerFast

    document = json.loads(text)
    processor = document.get("post_processor") or {}
    if not bos and processor.get("type") == "TemplateProcessing":
        # It puts a BOS in front, which the model has never seen.
        document["post_processor"] = None
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document, ensure_ascii=False))
    names = {token["id"]: token["content"] for token in document["added_tokens"]}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        eos_token=names.get(eos_id),
        # Else it gives token_type_ids too, which `generate` of a Llama refuses.
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.save_pretrained(folder)
    for written in sorted(folder.iterdir()):
        finished(written)
