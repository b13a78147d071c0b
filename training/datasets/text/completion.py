"""When is a part made, and when is the dataset? Its manifest is written last."""

from __future__ import annotations

from training.datasets.manifest import TOKENIZER_FILE, DatasetError, Manifest, Source, Validation
from training.datasets.text.parts import PartRecord
from training.datasets.text.plan import PARTS_PREFIX, PLAN_FILE, Part, Plan
from training.datasets.text.sources import Corpus
from training.datasets.text.vocabulary import Vocabulary
from training.storage import Objects
from trainium_catalogue.contract import DATASET_MANIFEST


def is_made(objects: Objects, part: Part, plan: Plan, sizes: dict[str, int]) -> bool:
    """Whether an earlier attempt has completed the part and its shards are still there."""
    if part.marker not in sizes:
        return False
    record = PartRecord.read(objects, part, fingerprint=plan.fingerprint)
    return record is not None and all(sizes.get(s.name) == s.bytes for s in record.files)


def finish(
    objects: Objects,
    plan: Plan,
    corpus: Corpus,
    vocabulary: Vocabulary,
    *,
    text_field: str,
    validation_fraction: float,
) -> Manifest | None:
    """Write the manifest if every part is there; whoever comes last does, and twice is harmless."""
    plan.require_recorded(objects)
    found = [PartRecord.read(objects, p, fingerprint=plan.fingerprint) for p in plan.parts]
    records = [record for record in found if record is not None]
    if len(records) < len(plan.parts):
        left = len(plan.parts) - len(records)
        print(f"tokenize: this job's share is done; {left} parts are other jobs'", flush=True)
        return None
    if not any(record.tokens for record in records):
        files = [file.name for record in records for file in record.files]
        objects.delete([PLAN_FILE, *(part.marker for part in plan.parts), *files])
        if files:
            raise DatasetError(
                f"all {sum(record.validation_documents for record in records)} documents of "
                f"{corpus.uri} happen to be held out, and none is left to train on; submit with "
                "--validation-fraction 0, or cut the text into more documents"
            )
        raise DatasetError(
            f"the input at {corpus.uri} has no document with text in {len(corpus.files)} files; "
            "check --input and --text-field"
        )
    validation = _validation(records, validation_fraction)
    manifest = Manifest(
        dtype=vocabulary.dtype,
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
            uri=corpus.uri, files=len(corpus.files), bytes=corpus.bytes, text_field=text_field
        ),
        shards=tuple(shard for record in records for shard in record.shards),
        validation=validation,
    )
    _remove_strays(objects, plan, manifest)
    objects.put(TOKENIZER_FILE, vocabulary.json.encode())
    objects.put(DATASET_MANIFEST, manifest.to_json())
    held_out = "nothing is held out"
    if validation is not None:
        held_out = (
            f"{validation.num_tokens:,} tokens of {validation.documents:,} documents are held out"
        )
    print(
        f"tokenize: {objects.uri} is complete: {manifest.num_tokens:,} tokens of "
        f"{manifest.documents:,} documents in {len(manifest.shards)} shards, {manifest.dtype}; "
        f"{held_out}",
        flush=True,
    )
    return manifest


def _validation(records: list[PartRecord], fraction: float) -> Validation | None:
    """What is held out; None where it is nothing, by chance or because nothing was asked for."""
    if not any(record.validation_documents for record in records):
        return None
    return Validation(
        fraction=fraction,
        num_tokens=sum(record.validation_tokens for record in records),
        documents=sum(record.validation_documents for record in records),
        shards=tuple(shard for record in records for shard in record.validation_shards),
    )


def _remove_strays(objects: Objects, plan: Plan, manifest: Manifest) -> None:
    """What an unfinished job with another plan has left."""
    known = {shard.name for shard in manifest.files} | {part.marker for part in plan.parts}
    for prefix in ("shard-", "validation-", PARTS_PREFIX):
        strays = [info.key for info in objects.list(prefix) if info.key not in known]
        if strays:
            objects.delete(strays)
