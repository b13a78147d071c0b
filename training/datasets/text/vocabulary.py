"""Read tokenizers: SentencePiece's ``tokenizer.model`` or Hugging Face's ``tokenizer.json``."""

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
    """A tokenizer as JSON, with the properties needed for packing."""

    name: str
    """Name of the source file."""
    file_sha256: str
    json: str
    """Contents of ``tokenizer.json``."""
    sha256: str
    """Checksum of ``json``, which determines the ids."""
    size: int
    """Vocabulary size: the largest id plus 1."""
    eos_id: int

    @property
    def dtype(self) -> str:
        """Data type of token ids in shards."""
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
        raise DatasetError(f"--tokenizer {value} is not a file: {error}") from None
    except ObjectMissing:
        names = sorted(info.key for info in objects.list()) if is_name else []
        known = f"; known: {', '.join(names)}" if names else ""
        raise DatasetError(
            f"there is no tokenizer {value}{known}; upload it with `python -m jobs upload ./{name}`"
        ) from None
    return read_vocabulary(path)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a tokenizer from a file; raise ``DatasetError`` if it is unusable."""
    data = path.read_bytes()
    converted = _from_json(data, path.name) if data[:1] == b"{" else _from_sentencepiece(path)
    text = _canonicalize(converted)
    try:
        tokenizer = load_tokenizer(text)
    except Exception as error:  # the library raises bare Exception
        raise DatasetError(f"{path.name} is not a usable tokenizer.json: {error}") from None
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if not ids:
        raise DatasetError(f"{path.name} has an empty vocabulary; use a trained tokenizer")
    # Prefer added tokens: an ordinary piece may have the same name.
    added = {token["content"] for token in json.loads(text)["added_tokens"]}
    eos = next((token for known in (added, ids) for token in EOS_TOKENS if token in known), None)
    if eos is None:
        raise DatasetError(
            f"{path.name} has no end-of-document token; "
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
    """Load a ``tokenizers.Tokenizer`` from JSON; cached, since it takes 0.1 s."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(text)


def _from_json(data: bytes, name: str) -> str:
    try:
        model = json.loads(data)["model"]["type"]
    except (ValueError, KeyError, TypeError):
        raise DatasetError(
            f"{name} is not a tokenizer.json: it has no model; upload the file of that name "
            "(not tokenizer_config.json), or tokenizer.model"
        ) from None
    assert isinstance(model, str), model
    return data.decode()


def _from_sentencepiece(path: Path) -> str:
    """Convert as ``AutoTokenizer`` does for a folder with only ``tokenizer.model``.

    The ids are thus the same as in the recipe that this workload replaces.
    """
    import transformers

    pb: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")

    if not transformers.__version__.startswith("4."):
        raise DatasetError(
            f"transformers {transformers.__version__} encodes text for Llama differently from "
            "version 4; install the version pinned in requirements.txt, or use a tokenizer.json"
        )
    model = pb.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception:  # DecodeError, whose module differs between releases of protobuf
        model.Clear()
    if not model.pieces:
        raise DatasetError(
            f"{path.name} is neither a SentencePiece model nor a tokenizer.json; "
            "upload the tokenizer.model or tokenizer.json that came with the weights"
        )
    if model.trainer_spec.model_type != pb.TrainerSpec.BPE:
        kind = pb.TrainerSpec.ModelType.Name(model.trainer_spec.model_type)
        raise DatasetError(
            f"{path.name} is a SentencePiece model of type {kind.lower()}, but only models of "
            "type bpe, such as Llama's, can be converted; use its tokenizer.json"
        )
    rules = model.normalizer_spec
    if rules.precompiled_charsmap or rules.remove_extra_whitespaces or not rules.add_dummy_prefix:
        raise DatasetError(
            f"{path.name} rewrites text before splitting it (normalizer {rules.name}), unlike "
            "Llama's; use its tokenizer.json"
        )
    transformers.logging.set_verbosity_error()  # it would log a long notice about a default
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(path, Path(folder) / "tokenizer.model")
        fast = transformers.LlamaTokenizerFast.from_pretrained(folder, local_files_only=True)
    return str(fast.backend_tokenizer.to_str())


def _canonicalize(text: str) -> str:
    """Serialize the tokenizer in canonical form, so that its SHA-256 identifies its ids."""
    document = json.loads(text)
    # Padding and truncation, meant for inference batches, would add or drop ids.
    document["padding"] = document["truncation"] = None
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
