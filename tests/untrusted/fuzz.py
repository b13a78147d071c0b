"""Feeds random changes of what lies in the bucket to everything that reads it.

    python -m tests.untrusted.fuzz --seed 1 --cases 1000 [--only metadata]

Each case must change nothing outside its folder, run nothing, and end with a result or one of the
refusals that its reader documents. Prints a JSON document; exit code 1 if a case did otherwise. A
case is found again by its kind and seed.
"""

from __future__ import annotations

import argparse
import codecs
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from jobs.errors import Refusal
from tests.untrusted import data_readers, desk_readers, program_readers
from tests.untrusted.common import Case
from tests.untrusted.guard import Guard, Violation
from training.checkpoint import CheckpointDamaged, CheckpointUnusable
from training.checkpoint.given import GivenWeightsError
from training.datasets.manifest import (
    DatasetError,
)
from training.program.settings import NotPrepared
from training.program.snapshots.restore import NoRoom, NothingWhole
from training.program.wheels import install, packages
from training.trainer.runs import RunConfigError

CASE_LIMIT_S = 60
_CODECS = (
    *("utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be", "utf_8_sig"),
    *("unicode_escape", "raw_unicode_escape", "latin_1", "ascii", "cp437", "idna", "punycode"),
)
_MEMORY = 12 * 2**30
_FILE_BYTES = 64 * 2**20

_CHECKPOINT = (CheckpointUnusable,)
CASES: Mapping[str, Case] = {
    "packed-manifest": Case(data_readers.packed_manifest, (DatasetError,)),
    "files-manifest": Case(data_readers.files_manifest, (DatasetError,)),
    "corpus-manifest": Case(data_readers.corpus_manifest, ()),
    "part-record": Case(data_readers.part_record, ()),
    "marker": Case(data_readers.marker, _CHECKPOINT),
    "metadata": Case(data_readers.metadata, _CHECKPOINT),
    "tensors": Case(data_readers.tensors, (CheckpointDamaged,)),
    "weights": Case(data_readers.given_weights, (GivenWeightsError,)),
    "snapshot": Case(program_readers.snapshot, (NoRoom, NothingWhole)),
    "listing": Case(program_readers.listing, (ValueError,)),
    "run-config": Case(data_readers.run_config, (RunConfigError,)),
    "lock": Case(data_readers.lock, ()),
    "model-config": Case(data_readers.model_config, (GivenWeightsError,)),
    "metrics": Case(desk_readers.metrics, ()),
    "program-record": Case(desk_readers.program_record, (Refusal,)),
    "bert-shard": Case(data_readers.bert_shard, (DatasetError,)),
    "wheels": Case(program_readers.wheels_marker, (install.DependenciesRefused, NotPrepared)),
    "archive": Case(program_readers.archive, (NotPrepared,)),
    "input-keys": Case(program_readers.keys_of_inputs, (NotPrepared,)),
    "log-keys": Case(desk_readers.keys_of_logs, (Refusal,)),
    "export-keys": Case(desk_readers.keys_of_exports, (Refusal,)),
    "desk-snapshot": Case(desk_readers.snapshot_at_the_desk, (Refusal,)),
    "code-listing": Case(desk_readers.code_listing, (Refusal,)),
}


@dataclass
class Report:
    """What has come of the cases."""

    counts: Counter[str]
    wrong: list[str]

    def note(self, kind: str, seed: str, outcome: str, detail: str = "") -> None:
        self.counts[f"{kind}: {outcome}"] += 1
        if detail:
            self.wrong.append(f"{kind} {seed}: {detail}")


def _tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): os.fsencode(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else str(path.lstat().st_mode).encode()
        for path in folder.rglob("*")
    }


def run_case(kind: str, seed: str, base: Path, guard: Guard | None, report: Report) -> None:
    """Run one case in a new folder; a ``Violation`` is reported, not raised."""
    rng = random.Random(f"{kind}/{seed}")
    inside, outside = base / "case" / "inside", base / "case" / "outside"
    inside.mkdir(parents=True)
    outside.mkdir()
    (outside / "x").write_bytes(b"old")
    before, known = _tree(outside), len(guard.violations) if guard else 0
    case, detail, outcome = CASES[kind], "", "read"
    signal.alarm(CASE_LIMIT_S)
    try:
        with guard.watching() if guard else nullcontext():
            found = case.run(inside, rng)
        outcome = found if isinstance(found, str) and found else outcome
    except case.refusals as error:
        outcome = "refused"
        if not str(error).strip():
            detail = f"a refusal without a message: {error!r}"
    except (Exception, Violation) as error:
        lines = traceback.format_exception(error)
        outcome, detail = "wrong", f"{error!r}\n{''.join(lines[-4:])}"
    finally:
        signal.alarm(0)
    if guard and len(guard.violations) > known:
        outcome, detail = "wrong", guard.violations[-1]
    if _tree(outside) != before:
        outcome, detail = "wrong", "a file outside was changed"
    shutil.rmtree(base / "case")
    report.note(kind, seed, outcome, detail)


def main(argv: list[str] | None = None) -> int:
    """Run the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--only", choices=sorted(CASES))
    wanted = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    here = packages.installed()
    # What is the same for every case and takes most of its time.
    vars(packages)["installed"] = lambda *_: here
    vars(install)["_run_pip"] = lambda *_: None
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _too_long)
    kinds = [wanted.only] if wanted.only else list(CASES)
    report, began = Report(Counter(), []), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        base = Path(name)
        os.chdir(base)
        for codec in _CODECS:  # json and pickletools import them when a document needs them
            codecs.lookup(codec)
        for kind in kinds:  # what is imported on the way is imported unwatched
            run_case(kind, "warm-up", base, None, Report(Counter(), []))
        guard = Guard(base / "case" / "inside")
        for number in range(wanted.cases):
            kind = kinds[number % len(kinds)]
            run_case(kind, f"{wanted.seed}-{number}", base, guard, report)
    print(
        json.dumps(
            {
                "cases": wanted.cases,
                "seconds": round(time.monotonic() - began, 1),
                "outcomes": dict(sorted(report.counts.items())),
                "wrong": report.wrong[:20],
            },
            indent=1,
        )
    )
    return 1 if report.wrong else 0


def _too_long(number: int, frame: FrameType | None) -> None:
    raise Violation(f"more than {CASE_LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main())
