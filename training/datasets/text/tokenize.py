"""The tokenize workload: text in, a packed dataset out, going on where an earlier job ended."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from training.datasets.manifest import Manifest
from training.datasets.places import Place
from training.datasets.prepared.ready import refuse_other
from training.datasets.text.completion import finish, is_made
from training.datasets.text.parts import Task
from training.datasets.text.plan import Plan, share
from training.datasets.text.pool import make_parts
from training.datasets.text.progress_line import ProgressLine
from training.datasets.text.readers import open_parquet
from training.datasets.text.sources import InputFile, find_corpus
from training.datasets.text.stream import open_object
from training.datasets.text.vocabulary import Vocabulary, fetch_vocabulary
from training.storage import Objects
from trainium_catalogue.contract import DATASET_MANIFEST, DATASETS_PREFIX

if TYPE_CHECKING:
    from training.workloads import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one job, or one child of an array job, is to do."""

    input: str
    tokenizer: str
    dataset: str
    text_field: str
    shard_tokens: int
    validation_fraction: float
    processes: int
    accelerate: bool
    place: Place
    array_index: int
    array_size: int


def run(job: Job) -> None:
    """Run the workload; one rank does it, whose processes use every core."""
    if job.device.rank:
        return
    context = job.context
    cores = len(os.sched_getaffinity(0))
    tokenize(
        Order(
            input=str(job.values["input"]),
            tokenizer=str(job.values["tokenizer"]),
            dataset=str(job.values["dataset"]),
            text_field=str(job.values["text-field"]),
            shard_tokens=int(job.values["shard-tokens"]),
            validation_fraction=float(job.values["validation-fraction"]),
            processes=int(job.values["processes"]) or cores,
            accelerate=bool(job.values["accelerate"]),
            place=Place.of(
                context.bucket, region=context.region, endpoint_url=context.endpoint_url
            ),
            array_index=context.array_index,
            array_size=context.array_size,
        ),
        report=job.progress.report,
    )


def tokenize(order: Order, *, report: Callable[[str], None]) -> Manifest | None:
    """Do this child's share; returns the manifest when the dataset is complete afterwards."""
    report("reading the tokenizer")
    with tempfile.TemporaryDirectory(prefix="tokenize-") as scratch:
        vocabulary = fetch_vocabulary(order.tokenizer, Path(scratch), order.place)
        return make_dataset(order, vocabulary, Path(scratch), report=report)


def make_dataset(
    order: Order, vocabulary: Vocabulary, scratch: Path, *, report: Callable[[str], None]
) -> Manifest | None:
    """The same with a tokenizer that has been read."""
    place = order.place
    uri = f"{place.root}/{DATASETS_PREFIX}{order.dataset}"
    objects = place.open(uri)
    refuse_other(objects, kind="packed")
    report("listing the input")
    corpus = find_corpus(order.input, place)
    plan = Plan.make(
        corpus,
        vocabulary,
        text_field=order.text_field,
        shard_tokens=order.shard_tokens,
        validation_fraction=order.validation_fraction,
        row_groups=_row_group_counter(place.open(corpus.uri), report),
    )
    sizes = {info.key: info.size for info in objects.list()}
    plan.record(objects, is_complete=DATASET_MANIFEST in sizes)
    mine = share(plan.parts, index=order.array_index, size=order.array_size)
    todo = [part for part in mine if not is_made(objects, part, plan, sizes)]
    print(
        f"tokenize: {len(corpus.files)} files, {corpus.bytes / 1e6:.1f} MB in "
        f"{len(plan.parts)} parts; {len(mine)} for this job, "
        f"{len(mine) - len(todo)} of them made before",
        flush=True,
    )
    task = Task(
        input_uri=corpus.uri,
        dataset_uri=uri,
        place=place,
        text_field=order.text_field,
        shard_tokens=order.shard_tokens,
        validation_fraction=order.validation_fraction,
        accelerate=order.accelerate,
        vocabulary=vocabulary,
        fingerprint=plan.fingerprint,
        scratch=scratch,
    )
    if todo:
        line = ProgressLine(len(todo), report)
        make_parts(task, todo, processes=order.processes, on_progress=line.show)
        line.end()
    return finish(
        objects,
        plan,
        corpus,
        vocabulary,
        text_field=order.text_field,
        validation_fraction=order.validation_fraction,
    )


def _row_group_counter(
    objects: Objects, report: Callable[[str], None]
) -> Callable[[InputFile], int]:
    def count(file: InputFile) -> int:
        report(f"looking into {file.key}")
        with open_object(objects, file.key, file.size) as stream:
            return int(open_parquet(stream, f"{objects.uri}/{file.key}").metadata.num_row_groups)

    return count
