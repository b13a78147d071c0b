"""Export a run: its newest checkpoint as a model in Hugging Face's layout, under ``export/<run>/``.

One CPU process; a file set of at most 5 GB a file. Memory: one such file at a time in the type
that is exported (Llama-2-7B in bfloat16: 13.5 GB in three files, so 5 GB), never the fp32 model.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.checkpoint.errors import CheckpointDamaged, CheckpointUnusable
from training.checkpoint.folders import Folders
from training.data.manifest import TOKENIZER_FILE
from training.data.places import Place
from training.objects import ObjectMissing, Objects, StorageRefused
from training.runs import RunConfig, checkpoint_root
from trainium_catalogue.contract import (
    DATASET_MANIFEST,
    DATASETS_PREFIX,
    EXPORT_PREFIX,
    RUNS_PREFIX,
    checkpoint_name,
)
from trainium_catalogue.plan import shape_of

if TYPE_CHECKING:
    from training.checkpoint.marker import CheckpointInfo
    from training.workloads import Job

RECEIPT = "export.json"
"""Written last: what was exported."""


class ExportError(ValueError):
    """There is nothing to export as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to export, and how."""

    run: str
    step: int
    """0: the newest complete checkpoint."""
    dtype: str
    """``bfloat16`` or ``float32``."""
    max_file_size: str = "5GB"
    """Of a file of weights, as transformers cuts them."""


def run(job: Job) -> None:
    """Export ``--run``, at ``--step`` or the newest complete checkpoint, as ``--dtype``."""
    if job.device.rank != 0:
        return
    context = job.context
    place = Place.of(context.bucket, region=context.region, endpoint_url=context.endpoint_url)
    order = Order(
        run=str(job.values["run"]),
        step=int(job.values["step"]),
        dtype=str(job.values["dtype"]),
    )
    export(order, place, report=job.progress.report)


def export(order: Order, place: Place, *, report: Callable[[str], None]) -> dict[str, Any]:
    """Write the files; returns the receipt, which is written last."""
    bucket = place.open(place.root)
    config = RunConfig.load(bucket.at(f"{RUNS_PREFIX}{order.run}"))
    if config is None:
        raise ExportError(f"there is no run {order.run} in {bucket.uri}; see: jobs list")
    checkpoints = checkpoint_root(
        bucket, order.run, config, region=place.region, endpoint_url=place.endpoint_url
    )
    # Nothing is deleted here, so the numbers do not matter.
    folders = Folders(checkpoints, keep_last=1, keep_every=0, say=_say)
    target = bucket.at(f"{EXPORT_PREFIX}{order.run}")
    refused: list[str] = []
    while True:
        info = _chosen(folders, order, refused)
        try:
            source = checkpoints.at(info.name)
            files = _export_model(order, config, info, source=source, target=target, report=report)
            break
        except CheckpointDamaged as error:
            _say(f"checkpoint {info.name} is refused: {error}")
            if order.step:
                raise CheckpointUnusable(
                    f"checkpoint {info.name} is damaged: {error}; export another --step"
                ) from None
            folders.refuse(info.step)
            refused.append(info.name)
    report("exporting the tokenizer")
    files |= _export_tokenizer(config, bucket=bucket, target=target)
    receipt = {
        "run": order.run,
        "step": info.step,
        "dtype": order.dtype,
        "tokens_total": info.meta.get("tokens_total"),
        "files": dict(sorted(files.items())),
    }
    stale = {entry.key for entry in target.list()} - {*files, RECEIPT}
    target.delete(sorted(stale))
    target.put(RECEIPT, json.dumps(receipt, indent=2).encode() + b"\n")
    _say(f"{info.name} of run {order.run} is in {target.uri}: {sum(files.values())} bytes")
    return receipt


def _say(text: str) -> None:
    print(f"export: {text}", flush=True)


def _chosen(folders: Folders, order: Order, refused: list[str]) -> CheckpointInfo:
    """The checkpoint to export."""
    info = folders.newest(at_most=order.step or None)
    if info is not None and order.step in (0, info.step):
        return info
    if order.step:
        complete = ", ".join(map(str, sorted(folders.complete()))) or "none"
        raise ExportError(
            f"run {order.run} has no complete {checkpoint_name(order.step)}; complete are the "
            f"steps: {complete}"
        )
    why = f"; {', '.join(refused)} cannot be read" if refused else ""
    raise ExportError(
        f"run {order.run} has no complete checkpoint{why}; export it when it has saved one"
    )


def _export_model(
    order: Order,
    config: RunConfig,
    info: CheckpointInfo,
    *,
    source: Objects,
    target: Objects,
    report: Callable[[str], None],
) -> dict[str, int]:
    """Write configuration and weights; returns the files with their sizes."""
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file
    from transformers.generation.configuration_utils import GenerationConfig

    from training.checkpoint.weights import open_weights
    from training.llama.model import llama_config, meta_model
    from training.llama.parallel import split_dimension, split_modules, tensor_parallel_plan

    dtype: torch.dtype = getattr(torch, order.dtype)
    if info.format == "nxd" and dtype is not torch.bfloat16:
        raise ExportError(
            f"checkpoint {info.name} was written by NxD, whose fp32 weights are cut up by "
            "data-parallel rank; export it with --dtype bfloat16"
        )
    model_config = llama_config(shape_of(config.values), seq_len=int(config.values["seq-len"]))
    model = meta_model(model_config).to(dtype)
    whole = dict(model.named_parameters())
    dimensions: dict[str, int | None] = dict.fromkeys(whole)
    for module, _, how in split_modules(model, tensor_parallel_plan(model_config)):
        dimensions[f"{module}.weight"] = split_dimension(how)
    done = 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        report(f"exporting {info.name}: {done >> 20} MiB")

    weights = open_weights(
        source,
        info,
        shapes={name: tensor.shape for name, tensor in whole.items()},
        split_dimensions=dimensions,
        on_bytes=count,
    )
    plan = split_torch_state_dict_into_shards(
        {name: tensor.detach() for name, tensor in whole.items()},
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=order.max_file_size,
    )
    files: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="trainium-export-") as scratch:
        folder = Path(scratch)

        def move(path: Path) -> None:
            target.put_file(path.name, path, on_bytes=count)
            files[path.name] = path.stat().st_size
            path.unlink()

        for file, names in plan.filename_to_tensors.items():
            save_file(weights.read(names, dtype), folder / file, metadata={"format": "pt"})
            move(folder / file)
        if plan.is_sharded:
            index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
            path = folder / "model.safetensors.index.json"
            path.write_text(json.dumps(index, indent=2) + "\n")
            move(path)
        eos_id = config.facts.get("eos_id")
        if eos_id is not None:
            model_config.eos_token_id = eos_id
        model_config.use_cache = True  # for generation; training has no use for one
        model_config.architectures = ["LlamaForCausalLM"]
        # transformers has written "dtype" since 4.56; whoever is older reads "torch_dtype".
        document = {
            **model_config.to_diff_dict(),
            "dtype": order.dtype,
            "torch_dtype": order.dtype,
        }
        (folder / "config.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
        GenerationConfig.from_model_config(model_config).save_pretrained(folder)
        for path in sorted(folder.iterdir()):
            move(path)
    return files


def _export_tokenizer(config: RunConfig, *, bucket: Objects, target: Objects) -> Mapping[str, int]:
    """Write the tokenizer that made the dataset's ids; without the dataset there is none."""
    dataset = bucket.at(f"{DATASETS_PREFIX}{config.values['dataset']}")
    try:
        manifest: dict[str, Any] = json.loads(dataset.get(DATASET_MANIFEST))
        text = dataset.get(TOKENIZER_FILE).decode()
    except (ObjectMissing, StorageRefused) as error:
        _say(f"the tokenizer is not exported: {error}")
        return {}
    known = config.facts.get("tokenizer_sha256")
    if known not in (None, manifest["tokenizer_sha256"]):
        _say(
            f"the tokenizer is not exported: dataset {config.values['dataset']} was made anew "
            "with another one since"
        )
        return {}
    files = {}
    with tempfile.TemporaryDirectory(prefix="trainium-export-") as scratch:
        for path in write_tokenizer(text, manifest, Path(scratch)):
            target.put_file(path.name, path)
            files[path.name] = path.stat().st_size
    return files


def write_tokenizer(text: str, manifest: Mapping[str, Any], folder: Path) -> list[Path]:
    """The files of a tokenizer that gives the ids that training saw."""
    from transformers.tokenization_utils_fast import PreTrainedTokenizerFast

    document = json.loads(text)
    processor = document.get("post_processor") or {}
    if not manifest["bos"] and processor.get("type") == "TemplateProcessing":
        # It puts a BOS in front, which the model has never seen.
        document["post_processor"] = None
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document, ensure_ascii=False))
    names = {token["id"]: token["content"] for token in document["added_tokens"]}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(path), eos_token=names.get(manifest["eos_id"])
    )
    tokenizer.save_pretrained(folder)
    return sorted(folder.iterdir())
