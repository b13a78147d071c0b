"""Reads a tokenizer: SentencePiece's ``tokenizer.model`` or Hugging Face's ``tokenizer.json``."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.datasets.manifest import DatasetError
from training.storage import ObjectMissing, StorageAccess
from trainium_catalogue.contract import TOKENIZERS_PREFIX
from trainium_catalogue.safe_folder import SafeFolder, UnsafeName

EOS_TOKENS = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>", "<|im_end|>", "[SEP]")
"""Names of the end-of-document token, in search order: Llama 2 and T5, Llama 3, GPT-2 and Qwen,
Gemma, Qwen's older chat models, BERT."""
_MAX_UINT16_VOCABULARY = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A tokenizer, as text, with the facts that packing needs."""

    name: str
    """Name of the file it was read from."""
    file_sha256: str
    json: str
    """``tokenizer.json``."""
    sha256: str
    """Checksum of ``json``, which fixes the ids."""
    size: int
    """Number of ids: the largest one plus 1."""
    eos_id: int

    @property
    def dtype(self) -> str:
        """Type of ids in shards."""
        return "uint16" if self.size <= _MAX_UINT16_VOCABULARY else "uint32"


def fetch_vocabulary(value: str, folder: Path, storage: StorageAccess) -> Vocabulary:
    """Fetch the ``--tokenizer``: a file in the bucket, ``s3://bucket/key`` or a path."""
    is_name = not value.startswith(("s3://", "/"))
    uri = f"{storage.root}/{TOKENIZERS_PREFIX}{value}" if is_name else value
    root, _, name = uri.rpartition("/")
    objects = storage.open(root or "/")
    path = folder / name
    try:
        with SafeFolder(folder).create(name) as file:
            objects.get_file(name, file)
    except UnsafeName as error:
        raise DatasetError(f"--tokenizer {value} is no file: {error}") from None
    except ObjectMissing:
        there = sorted(info.key for info in objects.list()) if is_name else []
        known = f"; there are {', '.join(there)}" if there else ""
        raise DatasetError(
            f"there is no tokenizer {value}{known}; upload it: jobs upload ./{name}"
        ) from None
    return read_vocabulary(path)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a tokenizer from a file; ``DatasetError`` if it cannot be used."""
    data = path.read_bytes()
    found = _from_json(data, path.name) if data[:1] == b"{" else _from_sentencepiece(path)
    text = _canonical(found)
    try:
        tokenizer = load_tokenizer(text)
    except Exception as error:  # the library raises bare Exception
        raise DatasetError(f"{path.name} is no tokenizer.json that can be used: {error}") from None
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if not ids:
        raise DatasetError(f"{path.name} has an empty vocabulary; use a trained tokenizer")
    # Text may be split into a piece of that name too, so tokens that are none come first.
    added = {token["content"] for token in json.loads(text)["added_tokens"]}
    eos = next((token for known in (added, ids) for token in EOS_TOKENS if token in known), None)
    if eos is None:
        raise DatasetError(
            f"{path.name} has no token that ends a document; "
            f"add one of {', '.join(EOS_TOKENS)} to its added_tokens"
        )
    return Vocabulary(
        name=path.name,
        file_sha256=hashlib.sha256(data).hexdigest(),
        json=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        size=max(ids.values()) + 1,
        eos_id=ids[eos],
    )


@lru_cache(maxsize=2)
def load_tokenizer(text: str) -> Any:
    """Load a ``tokenizers.Tokenizer`` from JSON, which takes a tenth of a second."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(text)


def _from_json(data: bytes, name: str) -> str:
    try:
        model = json.loads(data)["model"]["type"]
    except (ValueError, KeyError, TypeError):
        raise DatasetError(
            f"{name} is no tokenizer.json: it has no model; upload the file of that name "
            "(tokenizer_config.json is another one), or tokenizer.model"
        ) from None
    assert isinstance(model, str), model
    return data.decode()


def _from_sentencepiece(path: Path) -> str:
    """Convert as ``AutoTokenizer`` does for a folder with only ``tokenizer.model``.

    The recipe that this replaces used that tokenizer, and ids must stay the same.
    """
    import transformers

    pb: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")

    if not transformers.__version__.startswith("4."):
        raise DatasetError(
            f"transformers {transformers.__version__} gives Llama's text other ids than 4 does; "
            "install the version that requirements.txt pins, or use a tokenizer.json"
        )
    model = pb.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception:  # DecodeError, whose module moves between releases of protobuf
        model.Clear()
    if not model.pieces:
        raise DatasetError(
            f"{path.name} is neither a SentencePiece model nor a tokenizer.json; "
            "upload tokenizer.model or tokenizer.json as it came with the weights"
        )
    if model.trainer_spec.model_type != pb.TrainerSpec.BPE:
        kind = pb.TrainerSpec.ModelType.Name(model.trainer_spec.model_type)
        raise DatasetError(
            f"{path.name} is a SentencePiece model of type {kind.lower()}, and only bpe, as "
            "Llama's, is converted; use its tokenizer.json"
        )
    rules = model.normalizer_spec
    if rules.precompiled_charsmap or rules.remove_extra_whitespaces or not rules.add_dummy_prefix:
        raise DatasetError(
            f"{path.name} rewrites text before it splits it (normalizer {rules.name}), as "
            "Llama's does not; use its tokenizer.json"
        )
    transformers.logging.set_verbosity_error()  # it would explain a default at length
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(path, Path(folder) / "tokenizer.model")
        fast = transformers.LlamaTokenizerFast.from_pretrained(folder, local_files_only=True)
    return str(fast.backend_tokenizer.to_str())


def _canonical(text: str) -> str:
    """Write the tokenizer in a canonical form, so that its sha256 identifies its ids."""
    document = json.loads(text)
    # Padding and truncation are for inference batches; they would add or drop ids.
    document["padding"] = document["truncation"] = None
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
