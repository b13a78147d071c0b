"""Notes on programs that start processes themselves, or ignore that there are others."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.program.processes import process_warnings
from tests.jobs.conftest import Cli
from tests.jobs.programs import command_of, dry_run
from tests.jobs.test_refusals import assert_refused


def remarks(text: str, *, on_node: int = 0, **others: str) -> list[str]:
    files = {"train.py": text, **{f"{name}.py": other for name, other in others.items()}}
    contents = {path: file.encode() for path, file in files.items()}
    return list(process_warnings(contents, "train.py", on_node=on_node))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("pool.spawn(main, nprocs=8)  # rank", "spawn() starts more processes"),
        ("notebook_launcher(rank, num_processes=8)", "notebook_launcher() starts more processes"),
        ("subprocess.run(['accelerate', 'launch', 'x.py'])", "starts accelerate launch in the"),
        ("os.system('torchrun --nproc_per_node 8 x.py')  # rank", "starts torchrun in the program"),
        ("from torch import multiprocessing as m; m.spawn(rank)", "spawn() starts more processes"),
        ("from torch.multiprocessing import start_processes as s; s(rank)", "start_processes()"),
        (
            "for rank in range(2): mp.Process(target=f, args=(rank, 2))",
            "Process() starts more ranks",
        ),
        ("c = ['torchrun', 'x.py', rank]; subprocess.Popen(c)", "starts torchrun in the program"),
        ("subprocess.run([sys.executable, '-m', 'torch.distributed.run', rank])", "starts torch.d"),
        ("os.system('cd src && CUDA=0 accelerate  launch x.py')  # rank", "starts accelerate lau"),
        ("os.environ['MASTER_PORT'] = '12355'; rank = 0", "assigns MASTER_PORT"),
        ("os.environ.update(MASTER_PORT='1')  # rank", "assigns MASTER_PORT"),
        ("os.environ.update({'MASTER_ADDR': 'localhost'})  # rank", "assigns MASTER_ADDR"),
        ("environ |= {'RANK': '0'}", "assigns RANK"),
        (
            "dist.init_process_group('gloo', init_method='tcp://localhost:1', rank=0)",
            "connects to tcp://localhost:1, where no process listens",
        ),
        (
            "init_process_group('gloo', f'tcp://{ip}:{port}', rank=0)",
            "connects to a tcp:// address",
        ),
    ],
)
def test_process_launch_is_noted_with_line(line: str, told: str) -> None:
    (remark,) = remarks(f"import os\n{line}\n")
    assert remark.startswith(f"train.py, line 2: {told}")
    assert "torchrun has already started the processes of each node" in remark


@pytest.mark.parametrize(
    "line",
    [
        "os.environ.setdefault('MASTER_PORT', '12355'); rank = 0",
        "subprocess.run(['pip', 'install', 'deepspeed']); rank = 0",
        "rank = int(os.environ['RANK'])",
        "if 'RANK' not in os.environ: os.environ['MASTER_PORT'] = '12355'",
        "os.environ['MASTER_PORT'] = os.environ.get('MASTER_PORT', '12355'); rank = 0",
        "import numpy as np; np.random.SeedSequence(rank).spawn(4)",
        "multiprocessing.Process(target=evaluate, args=(queue,)).start()  # rank",
        "dist.init_process_group('gloo', init_method='env://', rank=0)",
        "dist.init_process_group('gloo', f'tcp://{e[\"MASTER_ADDR\"]}:1', rank=0)",
        "from transformers import Trainer",
    ],
)
def test_code_compatible_with_launcher_is_not_noted(line: str) -> None:
    assert remarks(line) == []


def test_program_that_ignores_rank_is_noted() -> None:
    (remark,) = remarks("import model\nmodel.train()\n", model="def train(): pass\n")
    assert remark.startswith("train.py: nothing reads a rank or joins a process group")
    assert "--processes-per-node 1" in remark
    assert remarks("import model", model="import torch.distributed") == []


def test_single_process_may_start_torchrun_but_not_accelerate() -> None:
    nested = "subprocess.run(['{}', 'x.py'])"
    assert remarks(nested.format("torchrun"), on_node=1) == []
    (remark,) = remarks(nested.format("accelerate launch"), on_node=1)
    assert "starts accelerate launch" in remark and "--processes-per-node" not in remark
    (remark,) = remarks(nested.format("torchrun") + "  # rank", on_node=2)
    assert remark.endswith("or use --processes-per-node 1")


def test_several_requested_processes_are_noted_as_duplicates() -> None:
    assert remarks("train()", on_node=1) == []
    (remark,) = remarks("train()", on_node=8)
    assert "so 8 processes would do the same work" in remark


def test_plan_shows_single_process_of_job(cli: Cli, program: Path) -> None:
    words = ("./train.py", "--processes-per-node", "1", "--name", "x")
    result = cli.run("submit", *words, "--nodes", "1", "--dry-run")

    assert "processes: 1 in the job, 1 per node, on 1 of its 32 NeuronCores" in result.stderr
    assert "AWS's guide" not in result.stderr
    command = command_of(dry_run(cli, *words))
    assert command[command.index("--processes-per-node") + 1] == "1"
    two = cli.run("submit", *words, "--nodes", "2", "--dry-run")
    assert "processes: 2 in the job, 1 per node" in two.stderr
    assert "AWS's guide requires multi-node jobs to use all NeuronCores of each node" in two.stderr


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (5, "and the number of processes must divide that number evenly; use 1, 2, 4, 8, 16 or 32"),
        (64, "and each process needs a separate one; use 1, 2, 4, 8, 16 or 32"),
    ],
)
def test_invalid_number_of_processes_is_refused(
    cli: Cli, program: Path, number: int, says: str
) -> None:
    result = cli.run("submit", "./train.py", "--processes-per-node", str(number), "--yes")

    assert_refused(result, f"--processes-per-node {number}: a node has 32 NeuronCores, {says}")
    assert cli.keys() == []
