"""Programs that start processes themselves, or do not know that there are others, are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.program.processes import started_processes
from tests.jobs.conftest import Desk
from tests.jobs.programs import command_of, dry_run
from tests.jobs.test_refusals import assert_refused


def remarks(text: str, *, on_node: int = 0, **others: str) -> list[str]:
    files = {"train.py": text, **{f"{name}.py": other for name, other in others.items()}}
    contents = {path: file.encode() for path, file in files.items()}
    return list(started_processes(contents, "train.py", on_node=on_node))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("mp.spawn(main, nprocs=8)  # rank", "spawn() starts processes of its own"),
        ("torch.multiprocessing.spawn(rank)", "spawn() starts processes of its own"),
        ("notebook_launcher(rank, num_processes=8)", "notebook_launcher() starts processes"),
        ("subprocess.run(['accelerate', 'launch', 'x.py'])", "starts accelerate launch in the"),
        ("os.system('torchrun --nproc_per_node 8 x.py')  # rank", "starts torchrun in the program"),
        ("from torch import multiprocessing as m; m.spawn(rank)", "spawn() starts processes"),
        ("from torch.multiprocessing import start_processes as s; s(rank)", "start_processes()"),
        ("xmp.spawn(rank)", "spawn() starts processes of its own"),
        ("for rank in range(2): mp.Process(target=f, args=(rank, 2))", "Process() starts ranks"),
        ("c = ['torchrun', 'x.py', rank]; subprocess.Popen(c)", "starts torchrun in the program"),
        ("subprocess.run([sys.executable, '-m', 'torch.distributed.run', rank])", "starts torch.d"),
        ("os.system('cd src && CUDA=0 accelerate  launch x.py')  # rank", "starts accelerate lau"),
        ("os.execvp('deepspeed', rank)", "starts deepspeed in the program"),
        ("os.environ['MASTER_PORT'] = '12355'; rank = 0", "assigns MASTER_PORT"),
        ("os.environ.update(MASTER_PORT='1')  # rank", "assigns MASTER_PORT"),
        ("os.environ.update({'MASTER_ADDR': 'localhost'})  # rank", "assigns MASTER_ADDR"),
        ("environ |= {'RANK': '0'}", "assigns RANK"),
        (
            "dist.init_process_group('gloo', init_method='tcp://localhost:1', rank=0)",
            "joins at tcp://localhost:1, where no process listens",
        ),
        ("init_process_group('gloo', f'tcp://{ip}:{port}', rank=0)", "joins at a tcp:// address"),
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
        "subprocess.run(['pip', 'install', 'deepspeed']); rank = 0",
        "rank = int(os.environ['RANK'])",
        "if 'RANK' not in os.environ: os.environ['MASTER_PORT'] = '12355'",
        "os.environ['MASTER_PORT'] = os.environ.get('MASTER_PORT', '12355'); rank = 0",
        "import numpy as np; np.random.SeedSequence(rank).spawn(4)",
        "multiprocessing.set_start_method('spawn'); rank = 0",
        "if __name__ == '__main__': DataLoader(data, num_workers=8, rank=rank)",
        "multiprocessing.Process(target=evaluate, args=(queue,)).start()  # rank",
        "dist.init_process_group('gloo', init_method='env://', rank=0)",
        "dist.init_process_group('gloo', f'tcp://{e[\"MASTER_ADDR\"]}:1', rank=0)",
        "torch_xla.launch(rank)",
        "from transformers import Trainer",
        "from trl import SFTTrainer",
        "from accelerate import Accelerator",
        "from timm.utils import init_distributed_device",
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


def test_an_only_process_may_start_torchrun_but_no_launcher_that_finds_its_rank() -> None:
    nested = "subprocess.run(['{}', 'x.py'])"
    assert remarks(nested.format("torchrun"), on_node=1) == []
    (remark,) = remarks(nested.format("accelerate launch"), on_node=1)
    assert "starts accelerate launch" in remark and "--processes-per-node" not in remark
    (remark,) = remarks(nested.format("torchrun") + "  # rank", on_node=2)
    assert remark.endswith("or give --processes-per-node 1")


def test_several_processes_that_were_asked_for_do_the_same_work_as_well() -> None:
    assert remarks("train()", on_node=1) == []
    (remark,) = remarks("train()", on_node=8)
    assert "so 8 processes would do the same work" in remark


def test_the_plan_names_the_only_process_of_a_job(desk: Desk, program: Path) -> None:
    words = ("./train.py", "--processes-per-node", "1", "--name", "x")
    result = desk.run("submit", *words, "--nodes", "1", "--dry-run")

    assert "processes: 1 in the job, 1 on each node, on 1 of its 32 NeuronCores" in result.stderr
    assert "AWS's guide" not in result.stderr
    command = command_of(dry_run(desk, *words))
    assert command[command.index("--processes-per-node") + 1] == "1"
    two = desk.run("submit", *words, "--nodes", "2", "--dry-run")
    assert "processes: 2 in the job, 1 on each node" in two.stderr
    assert "AWS's guide asks for all NeuronCores of each node" in two.stderr


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (5, "so some chips would be only partly used; give 1, 2, 4, 8, 16 or 32"),
        (64, "and each process needs one of its own; give 1, 2, 4, 8, 16 or 32"),
    ],
)
def test_a_number_of_processes_that_does_not_fit_a_node_is_refused(
    desk: Desk, program: Path, number: int, says: str
) -> None:
    result = desk.run("submit", "./train.py", "--processes-per-node", str(number), "--yes")

    assert_refused(result, f"--processes-per-node {number}: a node has 32 NeuronCores, {says}")
    assert desk.keys() == []
