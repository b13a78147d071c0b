"""Tokenizing a corpus, compared with the recipe in AWS's sample and with reading the text.

Both sides start with a tokenizer in memory and text on disk, and end with a dataset on disk.
Starting Python, importing modules and converting tokenizer.model happen once per job and are not
timed. The recipe's text is already in Arrow, as cached by its loader; ours is JSONL. The token ids
of all documents are compared before the timing starts.
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
from training.datasets.text.sources import TokenizeRequest
from training.datasets.text.tokenize import make_dataset
from training.datasets.text.vocabulary import Vocabulary, read_vocabulary
from training.storage import StorageAccess

TEXT_BYTES = 20_000_000
FAST_TARGET, PLAIN_TARGET = 1 / 5, 1 / 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInput:
    """The input of both sides."""

    folder: Path
    corpus: Path
    theirs: Any
    """Hugging Face's fast tokenizer."""
    ours: Vocabulary
    recipe: subprocess.Popen[str]
    """Process that runs the sample's steps on the same corpus in the baselines' environment."""


@contextlib.contextmanager
def prepared() -> Iterator[TokenizerInput]:
    """Write the corpus (AWS's API documentation, from botocore) and start the recipe's process."""
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
        # A freely usable substitute for Llama 2's tokenizer, of the same kind and size.
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
            inputs = TokenizerInput(
                folder=folder,
                corpus=corpus,
                theirs=transformers.AutoTokenizer.from_pretrained(model, local_files_only=True),
                ours=read_vocabulary(model / "tokenizer.model"),
                recipe=recipe,
            )
            refuse_different_ids(inputs, texts)
            yield inputs
        finally:
            recipe.kill()
            recipe.wait()


def refuse_different_ids(inputs: TokenizerInput, texts: list[str]) -> None:
    """Raise if a document of either dataset differs from the Hugging Face tokenizer's output."""
    for accelerate in (True, False):
        manifest, folder = _tokenize(inputs, accelerate=accelerate)
        tokens = PackedDataset(folder, manifest).sequence(0, manifest.num_tokens - 1)
        position = 0
        for start in range(0, len(texts), 1000):
            batch = texts[start : start + 1000]
            for ids in inputs.theirs(batch, add_special_tokens=False).input_ids:
                end = position + len(ids)
                if not np.array_equal(tokens[position:end], ids) or tokens[end] != manifest.eos_id:
                    raise RuntimeError(f"the ids of a document at token {position} differ")
                position = end + 1
        assert position == manifest.num_tokens, position
        shutil.rmtree(folder)


def _tokenize(inputs: TokenizerInput, *, accelerate: bool) -> tuple[PackedManifest, Path]:
    root = Path(tempfile.mkdtemp(dir=inputs.folder))
    request = TokenizeRequest(
        input=str(inputs.corpus.parent),
        tokenizer="",
        dataset="made",
        text_field="text",
        # Without the faster tokenizer, about one part per process.
        shard_tokens=TEXT_BYTES // 6 if not accelerate else 2**26,
        validation_fraction=0.0,
        processes=2,
        accelerate=accelerate,
        storage=StorageAccess(root=str(root)),
        array_index=0,
        array_size=1,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        manifest = make_dataset(request, inputs.ours, root, report=lambda text: None)
    assert manifest is not None
    return manifest, root / "datasets" / "made"


def ours(inputs: TokenizerInput, *, accelerate: bool) -> float:
    """Time our tokenization."""
    start = time.perf_counter()
    _, folder = _tokenize(inputs, accelerate=accelerate)
    elapsed = time.perf_counter() - start
    shutil.rmtree(folder.parents[1])
    return elapsed


def touch(inputs: TokenizerInput) -> float:
    """Time the minimum work: reading the text and touching every byte."""
    start = time.perf_counter()
    data = np.frombuffer(inputs.corpus.read_bytes(), np.uint8)
    int(data.sum(dtype=np.int64))
    return time.perf_counter() - start


def comparisons(stack: contextlib.ExitStack) -> list[Comparison]:
    """Compare ours, with and without the faster tokenizer, with the recipe and the minimum work.

    The first measurement creates the corpus; ``stack`` removes it.
    """

    @cache
    def inputs() -> TokenizerInput:
        return stack.enter_context(prepared())

    def fast() -> float:
        return ours(inputs(), accelerate=True)

    def baseline() -> float:
        return ask(inputs().recipe, "recipe")

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
            measure_product=lambda: ours(inputs(), accelerate=False),
            measure_baseline=baseline,
        ),
        Comparison(
            name="tokenize-limit",
            product="tokenize, fastokens where it passes its check",
            baseline="reading the text and touching every byte",
            target=None,
            measure_product=fast,
            measure_baseline=lambda: touch(inputs()),
        ),
    ]
