"""The tokenize workload, which packs text into a dataset and resumes after interruptions."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from training.datasets.manifest import (
    TOKENIZER_FILE,
    DatasetError,
    PackedManifest,
    Source,
    Validation,
    refuse_other_kind,
)
from training.datasets.text.examples import EXAMPLE_DTYPE
from training.datasets.text.parts import PartRecord, PartSettings, make_parts
from training.datasets.text.readers import open_parquet
from training.datasets.text.sources import (
    PARTS_PREFIX,
    PLAN_FILE,
    Corpus,
    InputFile,
    Part,
    PartPlan,
    TokenizeRequest,
    find_corpus,
    share,
)
from training.datasets.text.vocabulary import Vocabulary, fetch_vocabulary
from training.storage import Objects, StorageAccess
from training.storage.object_file import open_object
from trainium_catalogue.contract import DATASET_MANIFEST, DATASETS_PREFIX
from trainium_catalogue.wording import counted

if TYPE_CHECKING:
    from training.core.job import Job

_LOG_INTERVAL_S = 5.0

log = logging.getLogger(__name__)


class ProgressLine:
    """Logs progress every few seconds and reports it to the launcher."""

    def __init__(self, num_parts: int, report: Callable[[str], None]) -> None:
        self._num_parts, self._report = num_parts, report
        self._start_s = self._shown_s = time.monotonic()
        self._tokens = 0

    def show(self, parts: int, tokens: int, uploaded: int) -> None:
        """Report progress, and log it if due."""
        self._tokens = tokens
        text = (
            f"{parts} of {self._num_parts} parts, {tokens / 1e6:.1f} million tokens, "
            f"{uploaded / 1e6:.0f} MB written"
        )
        self._report(text)
        now = time.monotonic()
        if now - self._shown_s > _LOG_INTERVAL_S:
            self._shown_s = now
            self._log(text, now)

    def end(self) -> None:
        """Log the last line."""
        text = f"{counted(self._num_parts, 'part')}, {self._tokens / 1e6:.1f} million tokens"
        self._log(text, time.monotonic())

    def _log(self, text: str, now: float) -> None:
        rate = self._tokens / max(now - self._start_s, 1e-9) / 1e6
        log.info("tokenize: %s, %.2f million per second", text, rate)


def is_complete(objects: Objects, part: Part, plan: PartPlan, sizes: dict[str, int]) -> bool:
    """Return whether an earlier attempt completed the part and its shards still exist."""
    if part.marker not in sizes:
        return False
    record = PartRecord.read(objects, part, fingerprint=plan.fingerprint)
    return record is not None and all(sizes.get(s.name) == s.bytes for s in record.files)


def finish_packed(
    objects: Objects,
    plan: PartPlan,
    corpus: Corpus,
    vocabulary: Vocabulary,
    request: TokenizeRequest,
) -> PackedManifest | None:
    """Write the manifest once every part is complete; idempotent."""
    plan.require_recorded(objects)
    stored = [PartRecord.read(objects, p, fingerprint=plan.fingerprint) for p in plan.parts]
    records = [record for record in stored if record is not None]
    if len(records) < len(plan.parts):
        left = counted(len(plan.parts) - len(records), "part")
        log.info("tokenize: this job's share is done; other jobs still have to complete %s", left)
        return None
    if not any(record.tokens for record in records):
        files = [file.name for record in records for file in record.files]
        objects.delete([PLAN_FILE, *(part.marker for part in plan.parts), *files])
        if files:
            num_held_out = sum(record.validation_documents for record in records)
            raise DatasetError(
                f"{corpus.uri} has no documents for training, because all of its text "
                f"({counted(num_held_out, 'document')}) is in the validation split; submit with "
                "--validation-fraction 0, or split the text into more documents"
            )
        raise DatasetError(
            f"the input at {corpus.uri} has no documents with text in "
            f"{counted(len(corpus.files), 'file')}; check --input and --text-field"
        )
    validation = _validation(records, request.validation_fraction)
    manifest = PackedManifest(
        dtype=EXAMPLE_DTYPE if request.response_seq_len else vocabulary.dtype,
        vocab_size=vocabulary.size,
        eos_id=vocabulary.eos_id,
        bos=False,
        tokenizer=vocabulary.name,
        tokenizer_file_sha256=vocabulary.file_sha256,
        tokenizer_sha256=vocabulary.sha256,
        num_tokens=sum(record.tokens for record in records),
        documents=sum(record.documents for record in records),
        empty_documents=sum(record.empty_documents for record in records),
        source=Source(
            uri=corpus.uri,
            files=len(corpus.files),
            bytes=corpus.bytes,
            text_field=request.text_field,
        ),
        shards=tuple(shard for record in records for shard in record.shards),
        validation=validation,
        seq_len=request.response_seq_len,
        response_tokens=sum(record.response_tokens for record in records),
    )
    _remove_strays(objects, plan, manifest)
    objects.put(TOKENIZER_FILE, vocabulary.json.encode())
    objects.put(DATASET_MANIFEST, manifest.to_json())
    held_out = "no validation split"
    if validation is not None:
        held_out = (
            f"{validation.num_tokens:,} tokens of {counted(validation.documents, 'document')} held "
            "out"
        )
    log.info(
        f"tokenize: {objects.uri} is complete: {manifest.num_tokens:,} tokens of "
        f"{counted(manifest.documents, 'document')} in {counted(len(manifest.shards), 'shard')}, "
        f"{manifest.dtype}; {held_out}"
    )
    return manifest


def _validation(records: list[PartRecord], fraction: float) -> Validation | None:
    """Summarize the held-out documents; None if there are none."""
    if not any(record.validation_documents for record in records):
        return None
    return Validation(
        fraction=fraction,
        num_tokens=sum(record.validation_tokens for record in records),
        documents=sum(record.validation_documents for record in records),
        shards=tuple(shard for record in records for shard in record.validation_shards),
    )


def _remove_strays(objects: Objects, plan: PartPlan, manifest: PackedManifest) -> None:
    """Delete leftovers of an unfinished job with a different plan."""
    known = {shard.name for shard in manifest.files} | {part.marker for part in plan.parts}
    for prefix in ("shard-", "validation-", PARTS_PREFIX):
        objects.delete(info.key for info in objects.list(prefix) if info.key not in known)


def run(job: Job) -> None:
    """Run the workload on rank 0, by default with one process per vCPU."""
    if job.device.rank:
        return
    context = job.context
    cores = len(os.sched_getaffinity(0))
    tokenize(
        TokenizeRequest(
            input=str(job.values["input"]),
            tokenizer=str(job.values["tokenizer"]),
            dataset=str(job.values["dataset"]),
            text_field=str(job.values["text-field"]),
            shard_tokens=int(job.values["shard-tokens"]),
            validation_fraction=float(job.values["validation-fraction"]),
            response_seq_len=int(job.values["response-seq-len"]),
            processes=int(job.values["processes"]) or cores,
            accelerate=bool(job.values["accelerate"]),
            storage=StorageAccess.of(context),
            array_index=context.array_index,
            array_size=context.array_size,
        ),
        report=job.progress.report,
    )


def tokenize(request: TokenizeRequest, *, report: Callable[[str], None]) -> PackedManifest | None:
    """Process this child's share; return the manifest if the dataset is then complete."""
    report("reading the tokenizer")
    with tempfile.TemporaryDirectory(prefix="tokenize-") as scratch:
        vocabulary = fetch_vocabulary(request.tokenizer, Path(scratch), request.storage)
        return make_dataset(request, vocabulary, Path(scratch), report=report)


def make_dataset(
    request: TokenizeRequest,
    vocabulary: Vocabulary,
    scratch: Path,
    *,
    report: Callable[[str], None],
) -> PackedManifest | None:
    """Make the dataset with a loaded tokenizer; see ``tokenize``."""
    storage = request.storage
    uri = f"{storage.root}/{DATASETS_PREFIX}{request.dataset}"
    objects = storage.open(uri)
    refuse_other_kind(objects, kind="packed")
    report("listing the input")
    corpus = find_corpus(request.input, storage)
    plan = PartPlan.make(
        corpus,
        vocabulary,
        request,
        row_groups=_row_group_counter(storage.open(corpus.uri), report),
    )
    sizes = {info.key: info.size for info in objects.list()}
    plan.record(objects, is_complete=DATASET_MANIFEST in sizes)
    mine = share(plan.parts, index=request.array_index, size=request.array_size)
    todo = [part for part in mine if not is_complete(objects, part, plan, sizes)]
    log.info(
        f"tokenize: {counted(len(corpus.files), 'file')}, {corpus.bytes / 1e6:.1f} MB in "
        f"{counted(len(plan.parts), 'part')}; {len(mine)} for this job, "
        f"{len(mine) - len(todo)} of them already done"
    )
    task = PartSettings(
        request=request,
        input_uri=corpus.uri,
        dataset_uri=uri,
        vocabulary=vocabulary,
        fingerprint=plan.fingerprint,
        scratch=scratch,
    )
    if todo:
        line = ProgressLine(len(todo), report)
        make_parts(task, todo, processes=request.processes, on_progress=line.show)
        line.end()
    return finish_packed(objects, plan, corpus, vocabulary, request)


def _row_group_counter(
    objects: Objects, report: Callable[[str], None]
) -> Callable[[InputFile], int]:
    def count(file: InputFile) -> int:
        report(f"inspecting {file.key}")
        with open_object(objects, file.key, file.size) as stream:
            return int(open_parquet(stream, f"{objects.uri}/{file.key}").metadata.num_row_groups)

    return count
