"""The prepare workload, which stores a known corpus or dataset in the bucket."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from training.datasets.manifest import DatasetError
from training.datasets.prepared import corpora
from training.datasets.prepared.corpora import RAW_ENGLISH, count_complete, write_corpus
from training.datasets.prepared.web import Archive, fetch
from training.storage import StorageAccess
from trainium_catalogue.contract import CORPORA_PREFIX, DATASETS_PREFIX
from trainium_catalogue.parameters.data import DATASETS

if TYPE_CHECKING:
    from training.core.job import Job
    from training.datasets.manifest import DatasetManifest

log = logging.getLogger(__name__)


def run(job: Job) -> None:
    """Run the workload on rank 0."""
    if job.device.rank:
        return
    context = job.context
    if context.array_index:
        return  # all children would write the same files
    storage = StorageAccess.of(context)
    make = prepare_dataset if job.values["dataset"] in DATASETS else prepare
    make(
        str(job.values["dataset"]),
        storage,
        max_documents=int(job.values["max-documents"]),
        report=job.progress.report,
    )


def prepare_dataset(
    name: str, storage: StorageAccess, *, max_documents: int, report: Callable[[str], None]
) -> DatasetManifest:
    """Store dataset ``name`` from the catalogue, ready for training."""
    from training.datasets.prepared.bert_tar import prepare_bert_tar
    from training.datasets.prepared.bert_tiny import DOCUMENTS, prepare_bert_tiny
    from training.datasets.prepared.images import prepare_digits, prepare_mnist

    if max_documents and name != "bert-tiny":
        raise DatasetError(
            f"--max-documents {max_documents}: dataset {name} can only be fetched as a whole; omit "
            "--max-documents"
        )
    objects = storage.open(f"{storage.root}/{DATASETS_PREFIX}{name}")
    with tempfile.TemporaryDirectory(prefix="prepare-") as folder:
        scratch = Path(folder)
        match name:
            case "mnist":
                return prepare_mnist(objects, scratch, report=report)
            case "digits":
                return prepare_digits(objects, scratch, report=report)
            case "bert-wikicorpus":
                return prepare_bert_tar(objects, scratch, report=report)
        assert name == "bert-tiny", name
        count = max_documents or DOCUMENTS
        return prepare_bert_tiny(
            objects,
            scratch,
            documents=itertools.islice(corpora.api_documents(), count),
            source={**_botocore(), "max-documents": str(count)},
            report=report,
        )


def prepare(
    name: str,
    storage: StorageAccess,
    *,
    max_documents: int,
    report: Callable[[str], None],
    archive: Archive = RAW_ENGLISH,
) -> int:
    """Store corpus ``name`` from the catalogue; return the number of documents.

    ``max_documents`` limits the number unless 0. ``archive`` is the source of wikicorpus.
    """
    objects = storage.open(f"{storage.root}/{CORPORA_PREFIX}{name}")
    if name == "wikicorpus":
        source = {"url": archive.url, "sha256": archive.sha256}
    else:
        assert name == "aws-api-docs", name
        source = _botocore()
    if max_documents:
        source["max-documents"] = str(max_documents)
    total = count_complete(objects, source)
    if total is not None:
        log.info("prepare: %s is already complete: %s documents", objects.uri, f"{total:,}")
        return total
    with tempfile.TemporaryDirectory(prefix="prepare-") as folder:
        scratch = Path(folder)
        if name == "wikicorpus":
            path = scratch / "archive.tgz"
            fetch(archive, path, report)
            log.info("prepare: fetched %s, sha256 verified", archive.url)
            documents = corpora.wikicorpus_documents(path)
        else:
            documents = corpora.api_documents()
        selected: Iterable[Mapping[str, str]] = documents
        if max_documents:
            selected = itertools.islice(documents, max_documents)
        total = write_corpus(objects, selected, scratch, source=source, report=report)
    log.info("prepare: %s is complete: %s documents", objects.uri, f"{total:,}")
    return total


def _botocore() -> dict[str, str]:
    import botocore

    return {"package": "botocore", "version": botocore.__version__}
