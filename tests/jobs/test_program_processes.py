"""Programs that start processes themselves, or do not know that there are others, are told."""

from __future__ import annotations

import pytest

from jobs.program.processes import started_processes


def remarks(text: str, **others: str) -> list[str]:
    files = {"train.py": text, **{f"{name}.py": other for name, other in others.items()}}
    return list(started_processes({k: v.encode() for k, v in files.items()}, "train.py"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("mp.spawn(main, nprocs=8)  # rank", "spawn() starts processes of its own"),
        ("torch.multiprocessing.spawn(rank)", "spawn() starts processes of its own"),
        ("notebook_launcher(rank, num_processes=8)", "notebook_launcher() starts processes"),
        ("subprocess.run(['accelerate', 'launch', 'x.py'])", "starts accelerate launch in the"),
        ("os.system('torchrun --nproc_per_node 8 x.py')  # rank", "starts torchrun in the program"),
        ("os.environ['MASTER_PORT'] = '12355'; rank = 0", "assigns MASTER_PORT"),
    ],
)
def test_what_starts_processes_is_told_with_its_line(line: str, told: str) -> None:
    (remark,) = remarks(f"import os\n{line}\n")
    assert remark.startswith(f"train.py, line 2: {told}")
    assert "torchrun has already started the processes of each node" in remark


@pytest.mark.parametrize(
    "line",
    [
        "os.environ.setdefault('MASTER_PORT', '12355'); rank = 0",
        "subprocess.run(['git', 'rev-parse', 'HEAD']); rank = 0",
        "rank = int(os.environ['RANK'])",
        "from lightning import Trainer",
    ],
)
def test_what_goes_together_with_the_launcher_is_not_told(line: str) -> None:
    assert remarks(line) == []


def test_a_program_that_never_asks_for_its_rank_is_told_of_one_process() -> None:
    (remark,) = remarks("import model\nmodel.train()\n", model="def train(): pass\n")
    assert remark.startswith("train.py: nothing reads a rank or joins a process group")
    assert "--processes-per-node 1" in remark
    assert remarks("import model", model="import torch.distributed") == []
