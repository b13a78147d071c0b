"""The sample's tokenization, run in the baselines' environment.

The argument is the folder of ``benchmarks.tokenize``. For each line on standard input, it creates a
dataset and prints the elapsed seconds.
"""

import json
import shutil
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

import datasets
import transformers

BLOCK_TOKENS = 4096
"""Sequence length in the recipe."""


def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Join documents and split them into blocks, like the sample."""
    joined = {key: list(chain(*values)) for key, values in examples.items()}
    total = len(joined["input_ids"]) // BLOCK_TOKENS * BLOCK_TOKENS
    result = {
        key: [ids[i : i + BLOCK_TOKENS] for i in range(0, total, BLOCK_TOKENS)]
        for key, ids in joined.items()
    }
    result["labels"] = result["input_ids"].copy()
    return result


def main(folder: Path) -> None:
    """Run the sample's steps (aws-neuron-samples, get_dataset.py), with its fast tokenizer."""
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    # A later run must not use the first run's result.
    datasets.disable_caching()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model", local_files_only=True)
    with (folder / "corpus" / "part-00000.jsonl").open() as file:
        texts = datasets.Dataset.from_dict({"text": [json.loads(line)["text"] for line in file]})
    for _ in sys.stdin:
        start = time.perf_counter()
        encoded = texts.map(
            lambda examples: tokenizer(examples["text"]), batched=True, remove_columns=["text"]
        )
        grouped = encoded.map(group, batched=True)
        target = tempfile.mkdtemp(dir=folder)
        grouped.save_to_disk(target)
        print(time.perf_counter() - start, flush=True)
        shutil.rmtree(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
