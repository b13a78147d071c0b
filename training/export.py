"""Export a run: its newest checkpoint as a model in Hugging Face's layout, under ``export/<run>/``.

One CPU process; a file set of at most 5 GB a file. Memory: one such file at a time in the type
that is exported (Llama-2-7B in bfloat16: 13.5 GB in three files, so 5 GB), never the fp32 model.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.checkpoint.errors import CheckpointDamaged, CheckpointUnusable
from training.checkpoint.folders import Folders
from training.objects import ObjectMissing, Objects, StorageRefused, open_objects
from training.runs import RunConfig, checkpoint_root
from trainium_catalogue.contract import (
    DATASETS_PREFIX,
    EXPORT_PREFIX,
    RUNS_PREFIX,
    checkpoint_name,
)
from trainium_catalogue.plan import shape_of

if TYPE_CHECKING:
    from training.checkpoint.marker import CheckpointInfo
    from training.workloads import Job

_RECEIPT = "export.json"
"""Written last: what was exported."""


class ExportError(ValueError):
    """There is nothing to export as asked."""


def run(job: Job) -> None:
    """Export ``--run``, at ``--step`` or the newest complete checkpoint, as ``--dtype``."""
    if job.device.rank != 0:
        return
    context = job.context
    name, step = str(job.values["run"]), int(job.values["step"])
    bucket = open_objects(
        f"s3://{context.bucket}" if context.bucket else "build",
        region=context.region,
        endpoint_url=context.endpoint_url,
    )
    config = RunConfig.load(bucket.at(f"{RUNS_PREFIX}{name}"))
    if config is None:
        raise ExportError(f"there is no run {name} in {bucket.uri}; python -m jobs list shows runs")
    checkpoints = checkpoint_root(
        bucket,
        name,
        config,
        region=context.region,
        endpoint_url=context.endpoint_url,
    )
    # Nothing is deleted here, so the numbers do not matter.
    folders = Folders(checkpoints, keep_last=1, keep_every=0, say=_say)
    target = bucket.at(f"{EXPORT_PREFIX}{name}")
    refused: list[str] = []
    while True:
        info = _chosen(folders, name, step=step, refused=refused)
        try:
            files = _export(job, config, info, source=checkpoints.at(info.name), target=target)
            break
        except CheckpointDamaged as error:
            _say(f"checkpoint {info.name} is refused: {error}")
            if step:
                raise CheckpointUnusable(
                    f"checkpoint {info.name} is damaged: {error}; export another --step"
                ) from None
            folders.refuse(info.step)
            refused.append(info.name)
    files |= _export_tokenizer(job, config, bucket=bucket, target=target)
    receipt = {
        "run": name,
        "step": info.step,
        "dtype": str(job.values["dtype"]),
        "tokens_total": info.meta.get("tokens_total"),
        "files": dict(sorted(files.items())),
    }
    stale = {entry.key for entry in target.list()} - {*files, _RECEIPT}
    target.delete(sorted(stale))
    target.put(_RECEIPT, json.dumps(receipt, indent=2).encode() + b"\n")
    _say(f"{info.name} of run {name} is in {target.uri}: {sum(files.values())} bytes")


def _say(text: str) -> None:
    print(f"export: {text}", flush=True)


def _chosen(folders: Folders, run: str, *, step: int, refused: list[str]) -> CheckpointInfo:
    """The checkpoint to export."""
    info = folders.newest(at_most=step or None)
    if info is not None and step in (0, info.step):
        return info
    if step:
        complete = ", ".join(map(str, sorted(folders.complete()))) or "none"
        raise ExportError(
            f"run {run} has no complete {checkpoint_name(step)}; complete are the steps: {complete}"
        )
    why = f"; {', '.join(refused)} cannot be read" if refused else ""
    raise ExportError(f"run {run} has no complete checkpoint{why}; export it when it has saved one")


def _export(
    job: Job, config: RunConfig, info: CheckpointInfo, *, source: Objects, target: Objects
) -> dict[str, int]:
    """Write configuration and weights; returns the files with their sizes."""
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file
    from transformers.generation.configuration_utils import GenerationConfig

    from training.checkpoint.weights import open_weights
    from training.llama.model import llama_config, meta_model
    from training.llama.parallel import split_dimension, split_modules, tensor_parallel_plan

    dtype = getattr(torch, str(job.values["dtype"]))
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
        job.progress.report(f"exporting {info.name}: {done >> 20} MiB")

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
        max_shard_size="5GB",
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
        model_config.torch_dtype = dtype
        model_config.architectures = ["LlamaForCausalLM"]
        model_config.save_pretrained(folder)
        GenerationConfig.from_model_config(model_config).save_pretrained(folder)
        for path in sorted(folder.iterdir()):
            move(path)
    return files


def _export_tokenizer(
    job: Job, config: RunConfig, *, bucket: Objects, target: Objects
) -> Mapping[str, int]:
    """Write the tokenizer that made the dataset's ids; without the dataset there is none."""
    dataset = bucket.at(f"{DATASETS_PREFIX}{config.values['dataset']}")
    try:
        manifest: dict[str, Any] = json.loads(dataset.get("manifest.json"))
        text = dataset.get("tokenizer.json").decode()
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
        job.progress.report("exporting the tokenizer")
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
