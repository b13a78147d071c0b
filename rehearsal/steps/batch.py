"""The steps on Batch: from text to an exported model, surviving the loss of a node."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from shlex import quote

from rehearsal.deployment import cdk
from rehearsal.deployment.aws import EmulatedAccount
from rehearsal.deployment.state import RehearsalFolder, Settings
from rehearsal.proofs import training as evidence
from rehearsal.receipt import BatchTraining
from rehearsal.report import curve
from rehearsal.steps.jobs import LAUNCH_DEFAULTS, armed, ended_run, own_parameters
from rehearsal.steps.runner import Chain, Runner, flags, step

WORKLOAD = "llama-tiny"
PROCESSES_PER_NODE = 2
"""With 2 nodes: tensor parallel 2 x data parallel 2."""
RUN = "tiny"
PROBED = "probed"
"""Name of the run of verify, whose probes check whether they can probe."""
CORPUS = "aws-api-docs"
DATASET = "aws-api-docs-128"
TOKENIZER = "tokenizer.model"
MAX_NODES = 2

MAX_STEPS = 24
SAVE_EVERY = 6
KILLED_AFTER = 11
"""Step in the log at which the node is killed: well after a save, well before the next."""
DOCUMENTS = 400
HELD_OUT = "0.05"
"""Fraction of the documents; the default would be just two of them."""
PARAMETERS = {
    "max-steps": str(MAX_STEPS),
    "save-every": str(SAVE_EVERY),
    "seq-len": "64",
    "global-batch": "8",
    "micro-batch": "4",
    "warmup-steps": "3",
    "eval-every": "8",
    "eval-sequences": "16",
}
"""Small: the point is that training continues, not that the model learns much."""


def chains(settings: Settings, *, tokenizer: Path, download: Path) -> tuple[Chain, ...]:
    """Return every command, as a user types it."""
    nodes, training = num_nodes(settings), flags(parameters(settings))
    prepare = f"jobs submit prepare --dataset {CORPUS} --max-documents {DOCUMENTS}"
    tokenize = f"jobs submit tokenize --input {CORPUS} --tokenizer {TOKENIZER} --dataset {DATASET}"
    train = f"jobs submit {WORKLOAD} --nodes {nodes} --dataset {DATASET} --name {RUN} --compile"
    return (
        # It needs no data, so it runs while the training's are made.
        _chain(
            "verify",
            verify=f"jobs submit verify --nodes {nodes} --name {PROBED} --yes --follow",
            probes=f"jobs verify {PROBED}",
        ),
        # The longest row of chains: nothing in it waits for a step that it does not need.
        _chain("tokenizer", upload=f"jobs upload {quote(str(tokenizer))}"),
        _chain("text", prepare=f"{prepare} --yes --follow"),
        _chain(
            "dataset",
            after=("tokenizer", "text"),
            tokenize=f"{tokenize} --validation-fraction {HELD_OUT} --yes --follow",
        ),
        _chain("train", after=("dataset",), train=f"{train} {training} --yes --follow"),
        _chain(
            "export",
            after=("train",),
            export=f"jobs submit export --run {RUN} --yes --follow",
            download=f"jobs download {RUN} --to {quote(str(download))}",
        ),
        _chain("status", after=("train",), status=f"jobs status {RUN} --plot"),
    )


def _chain(name: str, *, after: tuple[str, ...] = (), **lines: str) -> Chain:
    return Chain(
        name=name,
        after=after,
        steps=tuple(step(n, line, processes=PROCESSES_PER_NODE) for n, line in lines.items()),
    )


def num_nodes(settings: Settings) -> int:
    """Number of nodes that train."""
    return min(MAX_NODES, settings.nodes)


def fault_kind(settings: Settings) -> str:
    """The fault that kills a node: not the main one, if there is another."""
    return "kill-child" if num_nodes(settings) > 1 else "kill-main"


def tokenizer_model(folder: RehearsalFolder) -> Path:
    """A SentencePiece model like Llama-2's, from a package: Meta's own needs its licence."""
    spec = importlib.util.find_spec("mistral_common")
    if spec is None or spec.origin is None:
        raise cdk.StepFailed("mistral-common is not installed; set the project up with: make setup")
    source = Path(spec.origin).parent / "data" / "tokenizer.model.v1"
    return Path(shutil.copyfile(source, folder.path / TOKENIZER))


def run(
    settings: Settings, *, aws: EmulatedAccount, folder: RehearsalFolder, runner: Runner
) -> BatchTraining:
    """Run every command, and report how training went."""
    download = folder.path / "checkpoint"
    with armed(aws, run=RUN, kind=fault_kind(settings), after=KILLED_AFTER):
        runner.run(chains(settings, tokenizer=tokenizer_model(folder), download=download))
    given = parameters(settings)
    found = evidence.gather(
        aws,
        run=RUN,
        log=runner.log("train"),
        download=download,
        plan=evidence.ExpectedTraining(
            max_steps=int(given["max-steps"]),
            save_every=int(given["save-every"]),
            killed_after=KILLED_AFTER,
            eval_every=int(given["eval-every"]),
        ),
    )
    found.checks.append(evidence.judge_probes(aws, PROBED))
    figure = folder.path / "loss.svg"
    curve.write_svg(
        figure,
        found.attempts,
        title=f"{WORKLOAD} on {num_nodes(settings)} nodes: loss by step",
        killed_after=KILLED_AFTER,
        resumed_from=found.resumed_from,
    )
    return BatchTraining(
        steps=runner.steps,
        run=ended_run(runner, "train", run=RUN, fault=fault_kind(settings)),
        killed_after=KILLED_AFTER,
        resumed_from=found.resumed_from,
        attempts=found.attempts,
        tokens_per_second=found.tokens_per_second,
        checks=found.checks,
        figure=str(figure),
    )


def parameters(settings: Settings) -> dict[str, str]:
    """Parameters of the training job: the rehearsal's own, then the user's."""
    given = own_parameters(settings.parameters, WORKLOAD)
    return {**PARAMETERS, **LAUNCH_DEFAULTS, **given}
