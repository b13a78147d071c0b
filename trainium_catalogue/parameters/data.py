"""The corpora and datasets of ``prepare``, and the parameters of CPU workloads."""

from collections.abc import Mapping
from types import MappingProxyType

from trainium_catalogue.contract import DATASET_NAME_HELP, DATASET_NAME_PATTERN
from trainium_catalogue.parameters.parameter import Parameter
from trainium_catalogue.wording import either

CORPORA: Mapping[str, str] = MappingProxyType(
    {
        "wikicorpus": "English Wikipedia from 2006, about a billion tokens, as in AWS's sample",
        "aws-api-docs": "AWS's own API documentation, from the botocore package: needs no network",
    }
)
"""Name to description of each text corpus, under ``corpora/``."""

DATASETS: Mapping[str, str] = MappingProxyType(
    {
        "mnist": "60,000 + 10,000 handwritten digits, for mnist, as in AWS's sample",
        "digits": "scikit-learn's 1,797 handwritten digits, for mnist: needs no network",
        "bert-wikicorpus": "AWS's shards of 128-token sequences from Wikipedia, for bert: 50 GB",
        "bert-tiny": "128-token sequences of AWS's API documentation, for bert-tiny: no network",
    }
)
"""Name to description of each dataset ready for training, under ``datasets/``."""

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson", ".json", ".parquet")
"""Suffixes of text files; all but Parquet may be followed by ``.gz``."""

_DATASET = DATASET_NAME_PATTERN
_INPUT = rf"{_DATASET}|s3://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9]/[^\s]*|/[^\s]+"

PREPARE_PARAMETERS = (
    Parameter(
        name="dataset",
        default="",
        required=True,
        pattern="|".join((*CORPORA, *DATASETS)),
        pattern_help=either((*CORPORA, *DATASETS)),
        help="corpus or dataset to download: " + ", ".join((*CORPORA, *DATASETS)),
    ),
    Parameter(
        name="max-documents",
        default=0,
        minimum=0,
        help="maximum number of documents of a corpus or bert-tiny (0: all; bert-tiny: 1,000)",
    ),
)

TOKENIZE_PARAMETERS = (
    Parameter(
        name="input",
        default="",
        required=True,
        pattern=_INPUT,
        pattern_help="a corpus in the bucket, s3://bucket/prefix or an absolute path",
        help="text to read: a corpus from prepare or upload, or a prefix in data_uris",
    ),
    Parameter(
        name="tokenizer",
        default="",
        required=True,
        pattern=rf"{_DATASET}|s3://[^\s]+|/[^\s]+",
        pattern_help="a tokenizer in the bucket, s3://bucket/key or an absolute path",
        help="tokenizer.model (SentencePiece) or tokenizer.json, as uploaded",
    ),
    Parameter(
        name="dataset",
        default="",
        required=True,
        pattern=_DATASET,
        pattern_help=DATASET_NAME_HELP,
        help="name of the dataset to create",
    ),
    Parameter(
        name="text-field",
        default="text",
        help="JSONL field or Parquet column that holds the text",
    ),
    Parameter(
        name="response-seq-len",
        default=0,
        minimum=0,
        help='for lines {"prompt": ..., "response": ...}: tokens per sequence of whole examples, '
        "in which only responses contribute to the loss (0: plain text)",
    ),
    Parameter(
        name="validation-fraction",
        default=0.005,
        minimum=0,
        maximum=0.5,
        help="fraction of the documents to hold out for --eval-every (0: none)",
    ),
    Parameter(
        name="shard-tokens",
        default=2**26,
        minimum=2**10,
        maximum=2**31,
        help="approximate number of tokens per shard",
    ),
    Parameter(
        name="processes",
        default=0,
        minimum=0,
        maximum=1024,
        help="worker processes (0: one per vCPU)",
    ),
    Parameter(
        name="accelerate",
        default=True,
        help="use a faster tokenizer if a check shows that its ids are identical",
    ),
)

EXPORT_PARAMETERS = (
    Parameter(
        name="run",
        default="",
        required=True,
        pattern=r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}",
        pattern_help="the name of a run",
        help="run whose checkpoint to export",
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
        help="data type of the exported weights",
    ),
    Parameter(
        name="merge",
        default=False,
        help="for a run with adapters (--lora-rank): merge them into the pretrained weights, and "
        "export the whole model",
    ),
)
