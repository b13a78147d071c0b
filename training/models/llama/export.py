"""Export a run: its newest checkpoint as a model in Hugging Face's layout, under ``export/<run>/``.

One CPU process; a file set of at most 5 GB a file. Memory: one such file at a time in the type
that is exported (Llama-2-7B in bfloat16: 13.5 GB in three files, so 5 GB), never the fp32 model.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.checkpoint import CheckpointDamaged, CheckpointUnusable
from training.checkpoint.folders import Folders
from training.datasets.manifest import TOKENIZER_FILE
from training.datasets.places import Place
from training.storage import ObjectMissing, Objects, StorageRefused
from training.trainer.runs import RunConfig, checkpoint_root
from trainium_catalogue.contract import (
    DATASET_MANIFEST,
    DATASETS_PREFIX,
    EXPORT_PREFIX,
    RUNS_PREFIX,
    checkpoint_name,
)
from trainium_catalogue.models import LLAMA_PRESETS
from trainium_catalogue.parameters.plan import shape_of

if TYPE_CHECKING:
    from training.checkpoint import CheckpointInfo
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
    if config.workload not in LLAMA_PRESETS:
        raise ExportError(
            f"run {order.run} is a run of {config.workload}, and only Llama models can be "
            f"exported ({', '.join(LLAMA_PRESETS)}); its checkpoints are in torch's own format, "
            "which torch.distributed.checkpoint.format_utils converts"
        )
    checkpoints = checkpoint_root(
        bucket, order.run, config, region=place.region, endpoint_url=place.endpoint_url
    )
    # Nothing is deleted here, so the numbers do not matter.
    folders = Folders(checkpoints, keep_last=1, keep_every=0, say=_say)
    target = bucket.at(f"{EXPORT_PREFIX}{order.run}")
    refused: list[str] = []
    while True:
        info = _chosen(folders, order, refused)
        upload = _Upload(target, info.name, report)
        try:
            _export_model(order, config, info, source=checkpoints.at(info.name), upload=upload)
            break
        except CheckpointDamaged as error:
            _say(f"checkpoint {info.name} is refused: {error}")
            if order.step:
                raise CheckpointUnusable(
                    f"checkpoint {info.name} is damaged: {error}; export another --step"
                ) from None
            folders.refuse(info.step)
            refused.append(info.name)
    _export_tokenizer(config, bucket=bucket, upload=upload)
    receipt = {
        "run": order.run,
        "step": info.step,
        "dtype": order.dtype,
        "tokens_total": info.meta.get("tokens_total"),
        "files": dict(sorted(upload.files.items())),
    }
    stale = {entry.key for entry in target.list()} - {*upload.files, RECEIPT}
    target.delete(sorted(stale))
    target.put(RECEIPT, json.dumps(receipt, indent=2).encode() + b"\n")
    num_bytes = sum(upload.files.values())
    _say(f"{info.name} of run {order.run} is in {target.uri}: {num_bytes} bytes")
    return receipt


class _Upload:
    """Moves finished files to where the export goes."""

    def __init__(self, target: Objects, name: str, report: Callable[[str], None]) -> None:
        self._target, self._name, self._report = target, name, report
        self._done = 0
        self.files: dict[str, int] = {}
        """Bytes by name."""

    def count(self, num_bytes: int) -> None:
        """So many bytes were read or written."""
        self._done += num_bytes
        self._report(f"exporting {self._name}: {self._done >> 20} MiB")

    def move(self, path: Path) -> None:
        """Upload a file and remove it here."""
        self._target.put_file(path.name, path, on_bytes=self.count)
        self.files[path.name] = path.stat().st_size
        path.unlink()


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
    order: Order, config: RunConfig, info: CheckpointInfo, *, source: Objects, upload: _Upload
) -> None:
    from training.models.llama.huggingface import write_model  # imports torch

    with tempfile.TemporaryDirectory(prefix="trainium-export-") as scratch:
        write_model(
            source,
            info,
            shape=shape_of(config.values),
            seq_len=int(config.values["seq-len"]),
            eos_id=config.facts.get("eos_id"),
            dtype=order.dtype,
            max_file_size=order.max_file_size,
            folder=Path(scratch),
            finished=upload.move,
            on_bytes=upload.count,
        )


def _export_tokenizer(config: RunConfig, *, bucket: Objects, upload: _Upload) -> None:
    """Export the tokenizer that made the dataset's ids; without the dataset there is none."""
    from training.models.llama.huggingface import write_tokenizer

    dataset = bucket.at(f"{DATASETS_PREFIX}{config.values['dataset']}")
    try:
        manifest: dict[str, Any] = json.loads(dataset.get(DATASET_MANIFEST))
        text = dataset.get(TOKENIZER_FILE).decode()
    except (ObjectMissing, StorageRefused) as error:
        _say(f"the tokenizer is not exported: {error}")
        return
    known = config.facts.get("tokenizer_sha256")
    if known not in (None, manifest["tokenizer_sha256"]):
        _say(
            f"the tokenizer is not exported: dataset {config.values['dataset']} was made anew "
            "with another one since"
        )
        return
    with tempfile.TemporaryDirectory(prefix="trainium-export-") as scratch:
        write_tokenizer(
            text,
            eos_id=manifest["eos_id"],
            bos=manifest["bos"],
            folder=Path(scratch),
            finished=upload.move,
        )
