"""Export a run's checkpoint, by default its newest, in Hugging Face format to ``export/<run>/``.

A single CPU process writes files of at most 5 GB, and holds one of them in memory at a time, in the
exported dtype, never the fp32 model (for Llama-2-7B in bfloat16, at most 5 of 13.5 GB).
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import torch

from training.checkpoint import CheckpointDamaged, CheckpointInfo, CheckpointUnusable
from training.checkpoint.folders import CheckpointFolders
from training.checkpoint.weights import Weights
from training.core.ranks import Ranks
from training.datasets.manifest import TOKENIZER_FILE
from training.models.llama.export_adapters import MergedWeights, read_adapters, write_adapters
from training.models.llama.huggingface import decoder_config, meta_model
from training.models.llama.pretrained import PretrainedModel
from training.storage import ObjectMissing, Objects, StorageAccess, StorageRefused
from training.trainer.runs import INIT_SHA256, RunConfig, checkpoint_root
from trainium_catalogue.contract import (
    DATASET_MANIFEST,
    DATASETS_PREFIX,
    EXPORT_PREFIX,
    RUNS_PREFIX,
    checkpoint_name,
)
from trainium_catalogue.documents import OPTIONAL, Keywords, Natural, Positive, as_document
from trainium_catalogue.models.presets import DECODERS
from trainium_catalogue.parameters.lora import Lora
from trainium_catalogue.parameters.plan import shape_of
from trainium_catalogue.typed_json import read_json

if TYPE_CHECKING:
    from training.core.job import Job
    from trainium_catalogue.models.presets import Shape

log = logging.getLogger(__name__)

RECEIPT = "export.json"
"""The receipt of the export, written last."""
OnFileWritten = Callable[[Path], None]
"""Receives a complete file and may delete it."""


class ExportError(ValueError):
    """The requested export is not possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The parameters of an export: run, step and dtype."""

    run: str
    step: int
    """0 for the newest complete checkpoint."""
    dtype: str
    """``bfloat16`` or ``float32``."""
    merge: bool = False
    """True to export the merged model, instead of the adapters, of a run with adapters."""
    max_file_size: str = "5GB"
    """Maximum size of a weights file, in transformers' notation."""


def run(job: Job) -> None:
    """Export ``--run`` at ``--step``, or at its newest complete checkpoint, as ``--dtype``."""
    if job.device.rank != 0:
        return
    context = job.context
    storage = StorageAccess.of(context)
    request = ExportRequest(
        run=str(job.values["run"]),
        step=int(job.values["step"]),
        dtype=str(job.values["dtype"]),
        merge=bool(job.values["merge"]),
    )
    export(request, storage, report=job.progress.report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The adapters of an exported run."""

    rank: Positive
    merged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReceipt:
    """The contents of an export; written after all other files."""

    run: str
    step: Natural
    dtype: Annotated[str, Keywords(enum=["bfloat16", "float32"])]
    tokens_total: Natural | None
    files: Mapping[str, Natural]
    """Size in bytes of every other file, by name."""
    adapters: Adapters | None = field(default=None, metadata=OPTIONAL)
    """Only for a run with adapters."""
    init_from: str | None = field(default=None, metadata=OPTIONAL)
    """The model that the adapters were trained on."""
    init_sha256: str | None = field(default=None, metadata=OPTIONAL)


def export(
    request: ExportRequest, storage: StorageAccess, *, report: Callable[[str], None]
) -> dict[str, Any]:
    """Write the files; return the receipt, which is written last."""
    bucket = storage.open_root()
    config = RunConfig.load(bucket.at(f"{RUNS_PREFIX}{request.run}"))
    if config is None:
        raise ExportError(f"there is no run {request.run} in {bucket.uri}; see: jobs list")
    if config.workload not in DECODERS:
        raise ExportError(
            f"run {request.run} is a run of {config.workload}, but only decoders can be "
            f"exported ({', '.join(DECODERS)}); its checkpoints are in torch's own format, "
            "which torch.distributed.checkpoint.format_utils can convert"
        )
    if request.merge and Lora.of(config.values) is None:
        raise ExportError(
            f"run {request.run} trained all weights, so there are no adapters to merge; export "
            "it without --merge"
        )
    pretrained = _pretrained(config, storage, report) if request.merge else None
    checkpoints = checkpoint_root(storage, bucket, request.run, config)
    # Retention settings do not matter, since nothing is deleted here.
    folders = CheckpointFolders(checkpoints, keep_last=1, keep_every=0, say=_say)
    target = bucket.at(f"{EXPORT_PREFIX}{request.run}")
    refused: list[str] = []
    while True:
        info = _choose(folders, request, refused)
        upload = _Upload(target, info.name, report)
        try:
            source = checkpoints.at(info.name)
            _export_model(
                request, config, info, source=source, pretrained=pretrained, upload=upload
            )
            break
        except CheckpointDamaged as error:
            if request.step:
                raise CheckpointUnusable(
                    f"checkpoint {info.name} is damaged: {error}; export another --step"
                ) from None
            _say(f"skipping checkpoint {info.name}: {error}")
            folders.ignore(info.step)
            refused.append(info.name)
    _export_tokenizer(config, bucket=bucket, upload=upload)
    lora = Lora.of(config.values)
    receipt: dict[str, Any] = as_document(
        ExportReceipt(
            run=request.run,
            step=info.step,
            dtype=request.dtype,
            tokens_total=info.meta.get("tokens_total"),
            files=dict(sorted(upload.files.items())),
            adapters=None if lora is None else Adapters(rank=lora.rank, merged=request.merge),
            init_from=None if lora is None else str(config.values["init-from"]),
            init_sha256=None if lora is None else config.facts[INIT_SHA256],
        )
    )
    stale = {entry.key for entry in target.list()} - {*upload.files, RECEIPT}
    target.delete(sorted(stale))
    target.put(RECEIPT, json.dumps(receipt, indent=2).encode() + b"\n")
    num_bytes = sum(upload.files.values())
    _say(f"{info.name} of run {request.run} is in {target.uri}: {num_bytes:,} bytes")
    return receipt


class _Upload:
    """Moves finished files to the export's destination."""

    def __init__(self, target: Objects, name: str, report: Callable[[str], None]) -> None:
        self._target, self._name, self._report = target, name, report
        self._done = 0
        self.files: dict[str, int] = {}
        """Sizes in bytes by name."""

    def count(self, num_bytes: int) -> None:
        """Count bytes read or written."""
        self._done += num_bytes
        self._report(f"exporting {self._name}: {self._done >> 20} MiB")

    def move(self, path: Path) -> None:
        """Upload a file and delete the local copy."""
        self._target.put_file(path.name, path, on_bytes=self.count)
        self.files[path.name] = path.stat().st_size
        path.unlink()


def _say(text: str) -> None:
    log.info("export: %s", text)


def _choose(
    folders: CheckpointFolders, request: ExportRequest, refused: list[str]
) -> CheckpointInfo:
    """Choose the checkpoint to export."""
    info = folders.newest(at_most=request.step or None)
    if info is not None and request.step in (0, info.step):
        return info
    if request.step:
        complete = ", ".join(map(str, sorted(folders.complete_steps()))) or "none"
        raise ExportError(
            f"run {request.run} has no complete {checkpoint_name(request.step)}; export "
            f"one of its complete steps: {complete}"
        )
    why = f"; {', '.join(refused)} cannot be read" if refused else ""
    raise ExportError(
        f"run {request.run} has no complete checkpoint{why}; export it once it has saved one"
    )


def _pretrained(
    config: RunConfig, storage: StorageAccess, report: Callable[[str], None]
) -> PretrainedModel:
    """Open the pretrained weights that a run's adapters were trained on; raise if they changed."""
    pretrained = PretrainedModel.open(config.values, storage, Ranks(), report=report)
    if pretrained.sha256 != config.facts[INIT_SHA256]:
        raise ExportError(
            f"{config.values['init-from']} no longer holds the weights on which the run's adapters "
            "were trained; restore those, or export without --merge"
        )
    return pretrained


def _export_model(
    request: ExportRequest,
    config: RunConfig,
    info: CheckpointInfo,
    *,
    source: Objects,
    pretrained: PretrainedModel | None,
    upload: _Upload,
) -> None:
    shape, lora = shape_of(config.values), Lora.of(config.values)
    model = meta_model(decoder_config(shape, seq_len=int(config.values["seq-len"])))
    shapes = {name: parameter.size() for name, parameter in model.named_parameters()}
    weights: WeightSource
    with tempfile.TemporaryDirectory(prefix="trainium-export-") as scratch:
        if lora is None:
            weights = Weights(source, info, shapes=shapes, on_bytes=upload.count)
        else:
            adapters = read_adapters(source, info, shape=shape, lora=lora, on_bytes=upload.count)
            if pretrained is None:
                write_adapters(
                    adapters,
                    lora,
                    base=str(config.values["init-from"]),
                    dtype=request.dtype,
                    folder=Path(scratch),
                    finished=upload.move,
                )
                return
            weights = MergedWeights(pretrained, adapters, lora, shapes=shapes)
        write_model(
            weights,
            shape=shape,
            seq_len=int(config.values["seq-len"]),
            eos_id=config.facts.get("eos_id"),
            dtype=request.dtype,
            max_file_size=request.max_file_size,
            folder=Path(scratch),
            finished=upload.move,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenizerFields:
    """The fields of a dataset's manifest that describe its token ids."""

    tokenizer_sha256: str
    eos_id: int
    bos: bool


def _export_tokenizer(config: RunConfig, *, bucket: Objects, upload: _Upload) -> None:
    """Export the dataset's tokenizer, if the dataset still exists."""
    dataset = bucket.at(f"{DATASETS_PREFIX}{config.values['dataset']}")
    try:
        manifest = read_json(dataset.get(DATASET_MANIFEST), _TokenizerFields)
        text = dataset.get(TOKENIZER_FILE).decode()
    except (ObjectMissing, StorageRefused, ValueError) as error:
        _say(f"the tokenizer is not exported: {error}")
        return
    known = config.facts.get("tokenizer_sha256")
    if known not in (None, manifest.tokenizer_sha256):
        _say(
            f"the tokenizer is not exported: dataset {config.values['dataset']} has been recreated "
            "with another one"
        )
        return
    with tempfile.TemporaryDirectory(prefix="trainium-export-") as scratch:
        write_tokenizer(
            text,
            eos_id=manifest.eos_id,
            bos=manifest.bos,
            folder=Path(scratch),
            finished=upload.move,
        )


class WeightSource(Protocol):
    """A source of full (unsharded) weights."""

    def read(self, names: Sequence[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Read the named tensors to the host."""


def write_model(
    weights: WeightSource,
    *,
    shape: Shape,
    seq_len: int,
    eos_id: int | None,
    dtype: str,
    max_file_size: str,
    folder: Path,
    finished: OnFileWritten,
) -> None:
    """Write a model with these weights to ``folder``, one file at a time.

    Holds one file's worth of tensors in memory, in ``dtype``.
    """
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file
    from transformers.generation.configuration_utils import GenerationConfig

    kind: torch.dtype = getattr(torch, dtype)
    config = decoder_config(shape, seq_len=seq_len)
    model = meta_model(config).to(kind)
    whole = {name: parameter.detach() for name, parameter in model.named_parameters()}
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
    config.use_cache = True  # for generation; training does not need it
    config.architectures = [type(model).__name__]
    # transformers has written "dtype" since 4.56; older versions read "torch_dtype".
    document = {**config.to_diff_dict(), "dtype": dtype, "torch_dtype": dtype}
    _write_json(folder / "config.json", document, finished)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    finished(folder / "generation_config.json")


def _write_json(path: Path, document: Mapping[str, Any], finished: OnFileWritten) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    finished(path)


def _remove_template(processor: dict[str, Any] | None) -> dict[str, Any] | None:
    """Remove the template that prepends a BOS, which the model never saw in training.

    Llama 3 has it in a sequence, after the byte-level processor.
    """
    if processor is None or processor["type"] == "TemplateProcessing":
        return None
    if processor["type"] != "Sequence":
        return processor
    remaining = [_remove_template(each) for each in processor["processors"]]
    return {**processor, "processors": [each for each in remaining if each is not None]}


def write_tokenizer(
    text: str, *, eos_id: int, bos: bool, folder: Path, finished: OnFileWritten
) -> None:
    """Write a tokenizer that produces the same ids as in training; ``text`` is its JSON."""
    from transformers.tokenization_utils_fast import PreTrainedTokenizerFast

    document = json.loads(text)
    if not bos:
        document["post_processor"] = _remove_template(document.get("post_processor"))
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document, ensure_ascii=False))
    names = {token["id"]: token["content"] for token in document["added_tokens"]}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        eos_token=names.get(eos_id),
        # The default adds token_type_ids, which Llama's `generate` rejects.
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.save_pretrained(folder)
    for written in sorted(folder.iterdir()):
        finished(written)
