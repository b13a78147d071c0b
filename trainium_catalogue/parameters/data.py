"""The corpora and datasets that ``prepare`` knows, and the parameters of workloads on CPUs."""

from collections.abc import Mapping
from types import MappingProxyType

from trainium_catalogue.contract import DATASET_NAME_HELP, DATASET_NAME_PATTERN
from trainium_catalogue.parameters.parameter import Parameter

CORPORA: Mapping[str, str] = MappingProxyType(
    {
        "wikicorpus": "English Wikipedia of 2006, about a billion tokens: the reference's corpus",
        "aws-api-docs": "AWS's own API documentation, from the botocore package: needs no network",
    }
)
"""Name to description of each corpus: text, below ``corpora/``."""

DATASETS: Mapping[str, str] = MappingProxyType(
    {
        "mnist": "60,000 + 10,000 handwritten digits, for mnist: the reference's",
        "digits": "1,797 handwritten digits that scikit-learn ships, for mnist: needs no network",
        "bert-wikicorpus": "AWS's shards of sequences of 128 from Wikipedia, for bert: 50 GB",
        "bert-tiny": "the same from AWS's API documentation, for bert-tiny: needs no network",
    }
)
"""Name to description of each dataset ready to train on, below ``datasets/``."""

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson", ".json", ".parquet")
"""Suffixes of text files; all but Parquet, itself compressed, may be followed by ``.gz``."""

_DATASET = DATASET_NAME_PATTERN
_INPUT = rf"{_DATASET}|s3://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9]/[^\s]*|/[^\s]+"

PREPARE_PARAMETERS = (
    Parameter(
        name="dataset",
        default="",
        required=True,
        pattern="|".join((*CORPORA, *DATASETS)),
        pattern_help=" or ".join((*CORPORA, *DATASETS)),
        help="corpus or dataset to fetch: " + ", ".join((*CORPORA, *DATASETS)),
    ),
    Parameter(
        name="max-documents",
        default=0,
        minimum=0,
        help="end after so many documents, of a corpus or of bert-tiny's (0: all, or 1,000)",
    ),
)

TOKENIZE_PARAMETERS = (
    Parameter(
        name="input",
        default="",
        required=True,
        pattern=_INPUT,
        pattern_help="a corpus of the bucket, s3://bucket/prefix or an absolute path",
        help="text to read: what prepare or upload put there, or any s3:// prefix",
    ),
    Parameter(
        name="tokenizer",
        default="",
        required=True,
        pattern=rf"{_DATASET}|s3://[^\s]+|/[^\s]+",
        pattern_help="a tokenizer of the bucket, s3://bucket/key or an absolute path",
        help="tokenizer.model (SentencePiece) or tokenizer.json, as uploaded",
    ),
    Parameter(
        name="dataset",
        default="",
        required=True,
        pattern=_DATASET,
        pattern_help=DATASET_NAME_HELP,
        help="name of the dataset to make",
    ),
    Parameter(
        name="text-field",
        default="text",
        help="field of a JSONL line, or column of a Parquet file, that holds the text",
    ),
    Parameter(
        name="response-seq-len",
        default=0,
        minimum=0,
        help='tokens of a sequence, where a line is {"prompt": ..., "response": ...}: whole '
        "examples are packed, and responses alone are learnt (0: text)",
    ),
    Parameter(
        name="validation-fraction",
        default=0.005,
        minimum=0,
        maximum=0.5,
        help="part of the documents that training does not see, for --eval-every (0: none)",
    ),
    Parameter(
        name="shard-tokens",
        default=2**26,
        minimum=2**10,
        maximum=2**31,
        help="tokens of one shard of the dataset, about",
    ),
    Parameter(
        name="processes",
        default=0,
        minimum=0,
        maximum=1024,
        help="worker processes (0: one for each core)",
    ),
    Parameter(
        name="accelerate",
        default=True,
        help="use a faster tokenizer where a check finds it gives the same ids",
    ),
)

EXPORT_PARAMETERS = (
    Parameter(
        name="run",
        default="",
        required=True,
        pattern=r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}",
        pattern_help="the name of a run",
        help="run whose checkpoint is exported",
    ),
    Parameter(
        name="step",
        default=0,
        minimum=0,
        help="checkpoint to export (0: the newest complete one)",
    ),
    Parameter(
        name="dtype",
        default="bfloat16",
        pattern="bfloat16|float32",
        pattern_help="bfloat16 or float32",
        help="type of the exported weights",
    ),
    Parameter(
        name="merge",
        default=False,
        help="of a run with adapters (--lora-rank): add them to the weights that they stand "
        "beside, and export the whole model",
    ),
)
