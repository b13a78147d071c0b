"""Tokenising a corpus, against the recipe of the sample that this replaces and against the disk.

Both sides begin with a tokenizer in memory and text on disk, and end with a dataset on disk;
starting Python, importing, and converting tokenizer.model happen once a job and do not count. The
recipe's text is already in Arrow, as its loader would cache it; ours is JSONL. Every document's ids
are compared before anything is timed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoint import ask
from benchmarks.pairs import Comparison
from benchmarks.processes import BASELINE_PYTHON, ROOT
from training.datasets.manifest import PackedManifest
from training.datasets.prepared import corpora
from training.datasets.samples.packed import PackedDataset
from training.datasets.text.tokenize import TokenizeOrder, make_dataset
from training.datasets.text.vocabulary import Vocabulary, read_vocabulary
from training.storage import StorageAccess

TEXT_BYTES = 20_000_000
FAST_TARGET, PLAIN_TARGET = 1 / 5, 1 / 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInput:
    """The input that both sides work on."""

    folder: Path
    corpus: Path
    theirs: Any
    """Hugging Face's fast tokenizer."""
    ours: Vocabulary
    recipe: subprocess.Popen[str]
    """Process that runs the sample's steps on the same corpus, with its own packages."""


@contextlib.contextmanager
def prepared() -> Iterator[TokenizerInput]:
    """Write the corpus: AWS's API documentation from the installed botocore."""
    import transformers

    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory(prefix="bench-tokenize-") as name:
        folder = Path(name)
        texts, size = [], 0
        for document in corpora.api_documents():
            texts.append(document["text"])
            size += len(document["text"])
            if size >= TEXT_BYTES:
                break
        corpus = folder / "corpus" / "part-00000.jsonl"
        corpus.parent.mkdir()
        with corpus.open("w") as file:
            file.writelines(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
        model = folder / "model"
        model.mkdir()
        # A substitute for Llama 2's tokenizer, free to use: same kind, same size.
        spec = find_spec("mistral_common")
        assert spec is not None and spec.origin is not None  # make setup installs it
        source = Path(spec.origin).parent / "data" / "tokenizer.model.v1"
        shutil.copyfile(source, model / "tokenizer.model")
        (model / "config.json").write_text('{"model_type": "llama"}')
        recipe = subprocess.Popen(
            [BASELINE_PYTHON, "-m", "benchmarks.tokenize_recipe", folder],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            setting = TokenizerInput(
                folder=folder,
                corpus=corpus,
                theirs=transformers.AutoTokenizer.from_pretrained(model, local_files_only=True),
                ours=read_vocabulary(model / "tokenizer.model"),
                recipe=recipe,
            )
            refuse_different_ids(setting, texts)
            yield setting
        finally:
            recipe.kill()
            recipe.wait()


def refuse_different_ids(setting: TokenizerInput, texts: list[str]) -> None:
    """Compare every document of both datasets with the plain Hugging Face tokenizer."""
    for accelerate in (True, False):
        manifest, folder = _tokenize(setting, accelerate=accelerate)
        found = PackedDataset(folder, manifest).sequence(0, manifest.num_tokens - 1)
        place = 0
        for start in range(0, len(texts), 1000):
            batch = texts[start : start + 1000]
            for ids in setting.theirs(batch, add_special_tokens=False).input_ids:
                end = place + len(ids)
                if not np.array_equal(found[place:end], ids) or found[end] != manifest.eos_id:
                    raise RuntimeError(f"the ids of a document at token {place} differ")
                place = end + 1
        assert place == manifest.num_tokens, place
        shutil.rmtree(folder)


def _tokenize(setting: TokenizerInput, *, accelerate: bool) -> tuple[PackedManifest, Path]:
    root = Path(tempfile.mkdtemp(dir=setting.folder))
    order = TokenizeOrder(
        input=str(setting.corpus.parent),
        tokenizer="",
        dataset="made",
        text_field="text",
        # As on a machine with two cores: one part for each.
        shard_tokens=TEXT_BYTES // 6 if not accelerate else 2**26,
        validation_fraction=0.0,
        processes=2,
        accelerate=accelerate,
        storage=StorageAccess(root=str(root)),
        array_index=0,
        array_size=1,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        manifest = make_dataset(order, setting.ours, root, report=lambda text: None)
    assert manifest is not None
    return manifest, root / "datasets" / "made"


def ours(setting: TokenizerInput, *, accelerate: bool) -> float:
    """Time the product."""
    start = time.perf_counter()
    _, folder = _tokenize(setting, accelerate=accelerate)
    elapsed = time.perf_counter() - start
    shutil.rmtree(folder.parents[1])
    return elapsed


def touch(setting: TokenizerInput) -> float:
    """Time the unavoidable work: reading the text and looking at every byte."""
    start = time.perf_counter()
    data = np.frombuffer(setting.corpus.read_bytes(), np.uint8)
    int(data.sum(dtype=np.int64))
    return time.perf_counter() - start


def comparisons(stack: contextlib.ExitStack) -> list[Comparison]:
    """List ours with and without the accelerator, and the distance to the limit.

    The corpus is created when the first is measured; ``stack`` removes it.
    """

    @cache
    def setting() -> TokenizerInput:
        return stack.enter_context(prepared())

    def fast() -> float:
        return ours(setting(), accelerate=True)

    def baseline() -> float:
        return ask(setting().recipe, "recipe")

    steps = "fast tokenizer, datasets.map, group to 4096, save_to_disk"
    return [
        Comparison(
            name="tokenize",
            product="tokenize, fastokens where it passes its check",
            baseline=steps,
            target=FAST_TARGET,
            measure_product=fast,
            measure_baseline=baseline,
        ),
        Comparison(
            name="tokenize-plain",
            product="tokenize --accelerate false",
            baseline=steps,
            target=PLAIN_TARGET,
            measure_product=lambda: ours(setting(), accelerate=False),
            measure_baseline=baseline,
        ),
        Comparison(
            name="tokenize-limit",
            product="tokenize, fastokens where it passes its check",
            baseline="reading the text and touching every byte",
            target=None,
            measure_product=fast,
            measure_baseline=lambda: touch(setting()),
        ),
    ]
