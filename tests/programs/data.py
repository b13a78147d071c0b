"""Make the small inputs of the public programs: text, tables, tokenizers, models.

    python tests/programs/data.py FOLDER KIND...

Everything is generated from a seed, so two calls write the same files. Nothing here trains.
"""

import argparse
import json
import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

WORDS = (
    "river", "mountain", "window", "garden", "silver", "quiet", "morning", "paper", "stone",
    "bridge", "yellow", "winter", "letter", "ocean", "forest", "candle", "music", "shadow",
    "kitchen", "travel", "simple", "story", "orange", "market", "number", "circle",
)  # fmt: skip
SENTENCES = 400


def sentences(count: int = SENTENCES, seed: int = 0) -> list[str]:
    """Generate sentences that a small model can learn: one word often follows another."""
    chooser = random.Random(seed)
    result = []
    for _ in range(count):
        at = chooser.randrange(len(WORDS))
        words = []
        for _ in range(12):
            words.append(WORDS[at])
            at = (at * 5 + chooser.randrange(3)) % len(WORDS)
        result.append(" ".join(words) + ".")
    return result


def make_text(folder: Path) -> None:
    """Plain text, in one file for training and one for validation."""
    (folder / "train.txt").write_text("\n".join(sentences()) + "\n")
    (folder / "val.txt").write_text("\n".join(sentences(60, seed=1)) + "\n")


def make_text_folders(folder: Path) -> None:
    """Write the same text to a training and a validation folder, as litgpt expects."""
    for name, lines in (("train", sentences()), ("val", sentences(60, seed=1))):
        (folder / "texts" / name).mkdir(parents=True, exist_ok=True)
        (folder / "texts" / name / "text.txt").write_text("\n".join(lines) + "\n")


LIGHTNING_CLI = """from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.lstm import LightningLSTM

LightningCLI(LightningLSTM)
"""


def make_lightning_lstm(folder: Path) -> None:
    """Three lines that start a demo of Lightning's wheel, which carries no script of its own.

    The text is placed where the demo looks before downloading.
    """
    (folder / "train.py").write_text(LIGHTNING_CLI)
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "wikitext-2.txt").write_text("\n".join(sentences(160)) + "\n")


REWARD = """def rivers(completions, **kwargs):
    return [float(text.count("r")) for text in completions]
"""


def make_reward(folder: Path) -> None:
    """A reward function, as a user of TRL's GRPO writes it: it likes the letter r."""
    (folder / "rewards.py").write_text(REWARD)


def make_tables(folder: Path) -> None:
    """Tables, each a folder with a file for training: texts, prompts, pairs and more."""
    tables: dict[str, Callable[[str], object]] = {
        "texts": lambda row: {"text": row},
        "prompts": lambda row: {"prompt": row[:30], "completion": row[30:]},
        "pairs": lambda row: {"prompt": row[:20], "chosen": row[20:], "rejected": row[20:][::-1]},
        "answers": lambda row: {
            "prompt": row[:20],
            "completion": row[20:],
            "label": "river" in row,
        },
        "stories": lambda row: {
            "sent1": row[:20],
            "sent2": row[20:30],
            **{f"ending{number}": row[30:] * (number + 1) for number in range(4)},
            "label": len(row) % 4,
        },
        "translations": lambda row: {"translation": {"en": row, "de": row.upper()}},
        "reviews": lambda row: {"sentence": row, "label": int("river" in row)},
        "entities": lambda row: {
            "tokens": row.rstrip(".").split(),
            "ner_tags": ["B-LOC" if word == "river" else "O" for word in row.split()],
        },
    }
    for name, convert in tables.items():
        (folder / name).mkdir(exist_ok=True)
        lines = [json.dumps(convert(row)) + "\n" for row in sentences()]
        (folder / name / "train.json").write_text("".join(lines))


def make_torchtitan(folder: Path) -> None:
    """A tokenizer and a data set where torchtitan's repository has those for its debug model."""
    make_tokenizer(folder / "tests" / "assets")
    (folder / "tests" / "assets" / "c4_test").mkdir()
    lines = [json.dumps({"text": row}) + "\n" for row in sentences()]
    (folder / "tests" / "assets" / "c4_test" / "data.json").write_text("".join(lines))


def make_imdb(folder: Path) -> None:
    """Write reviews with sentiment labels under the name of the dataset to download."""
    (folder / "imdb").mkdir(exist_ok=True)
    for name, lines in (("train", sentences()), ("test", sentences(60, seed=1))):
        rows = [{"text": line, "label": int("river" in line)} for line in lines]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "imdb" / f"{name}.json").write_text(text)


def make_questions(folder: Path) -> None:
    """Questions whose answer is the last word of a sentence, in SQuAD's form."""
    rows = []
    for number, row in enumerate(sentences()):
        answer = row.rstrip(".").rpartition(" ")[2]
        answers = {"text": [answer], "answer_start": [row.rindex(answer)]}
        question = f"What comes after {row.split()[-2]}?"
        rows.append({"id": str(number), "context": row, "question": question, "answers": answers})
    (folder / "questions").mkdir(exist_ok=True)
    (folder / "questions" / "train.json").write_text(json.dumps({"data": rows}))


def make_tokenizer(folder: Path) -> None:
    """Write a word-level Hugging Face tokenizer, without a model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
        model_max_length=128,
    )
    fast.chat_template = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
    fast.save_pretrained(folder / "tokenizer")


def _save(model: object, folder: Path, name: str) -> None:
    import shutil

    if not (folder / "tokenizer").exists():
        make_tokenizer(folder)
    model.save_pretrained(folder / name)  # type: ignore[attr-defined]
    for file in (folder / "tokenizer").iterdir():
        shutil.copy(file, folder / name / file.name)


def make_llama(folder: Path) -> None:
    """A Llama of 70 thousand parameters with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=3,
        tie_word_embeddings=False,
    )
    _save(LlamaForCausalLM(config), folder, "llama")


def make_bert(folder: Path, dropout: float = 0.1) -> None:
    """A BERT of two layers with random weights."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=3,
    )
    _save(BertForMaskedLM(config), folder, "bert")


def make_bert_without_dropout(folder: Path) -> None:
    """Write the same, for a program that does not save its RNG state."""
    make_bert(folder, dropout=0.0)


def make_t5(folder: Path) -> None:
    """A T5 of two layers with random weights."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=512,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        pad_token_id=3,
        eos_token_id=1,
        decoder_start_token_id=3,
    )
    _save(T5ForConditionalGeneration(config), folder, "t5")


def make_litgpt(folder: Path) -> None:
    """Write a litgpt model with random weights, its tokenizer, and instructions for tuning."""
    import shutil

    import torch

    # Only in the programs' layer.
    litgpt, utils = import_module("litgpt"), import_module("litgpt.utils")
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "block_size": 64, "padded_vocab_size": 512}
    config = litgpt.Config.from_name("pythia-14m", **sizes)
    make_tokenizer(folder)
    shutil.copytree(folder / "tokenizer", folder / "litgpt-model")
    torch.save(litgpt.GPT(config).state_dict(), folder / "litgpt-model" / "lit_model.pth")
    utils.save_config(config, folder / "litgpt-model")
    rows = [{"instruction": row[:30], "input": "", "output": row[30:]} for row in sentences()]
    (folder / "instructions.json").write_text(json.dumps(rows))


METRIC = '''"""Share of predictions that are right, in the form of a metric of Evaluate."""

import datasets
import evaluate


class Right(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int32")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        right = sum(int(a == b) for a, b in zip(predictions, references, strict=True))
        return {"accuracy": right / len(references)}
'''


def make_metrics(folder: Path) -> None:
    """Write metrics under the names that Evaluate would download."""
    for name in ("accuracy", "glue", "sacrebleu", "seqeval", "squad"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"{name}.py").write_text(METRIC)


def make_glue(folder: Path) -> None:
    """Write pairs of sentences in place of GLUE's MRPC, under its name on Hugging Face's hub."""
    place = folder / "nyu-mll" / "glue"
    place.mkdir(parents=True, exist_ok=True)
    files = {"train": "train.json", "validation": "validation.json"}
    rows = sentences()
    for start, file in enumerate(files.values()):
        lines = []
        for number, row in enumerate(rows[start::2]):
            same = number % 2
            other = row if same else rows[-number - 1]
            pair = {"sentence1": row, "sentence2": other, "label": same, "idx": number}
            lines.append(json.dumps(pair) + "\n")
        (place / file).write_text("".join(lines))
    listed = "".join(f"  - split: {split}\n    path: {file}\n" for split, file in files.items())
    header = f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{listed}---\n"
    (place / "README.md").write_text(header)


def make_bert_base_cased(folder: Path) -> None:
    """Write the small BERT under the name of the model to download."""
    make_bert(folder)
    (folder / "bert").rename(folder / "bert-base-cased")


KINDS: dict[str, Callable[[Path], None]] = {
    "text": make_text,
    "text-folders": make_text_folders,
    "lightning-lstm": make_lightning_lstm,
    "reward": make_reward,
    "tables": make_tables,
    "imdb": make_imdb,
    "questions": make_questions,
    "tokenizer": make_tokenizer,
    "torchtitan": make_torchtitan,
    "llama": make_llama,
    "bert": make_bert,
    "bert-without-dropout": make_bert_without_dropout,
    "bert-base-cased": make_bert_base_cased,
    "t5": make_t5,
    "litgpt": make_litgpt,
    "glue": make_glue,
    "metrics": make_metrics,
}


def main() -> None:
    """Write the requested inputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="+", choices=sorted(KINDS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for kind in options.kinds:
        KINDS[kind](options.folder)


if __name__ == "__main__":
    main()
