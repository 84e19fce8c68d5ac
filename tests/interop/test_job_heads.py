"""Heads of jobs of PBS and LSF: servers, GPUs and time that the schedulers' references say."""

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.questions.admit.answer import time_limit_s

TRAINS = """
python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --bf16 \\
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 \\
    --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear \\
    --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 \\
    --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 256 --train-iters 9
"""


def read(folder: Path, head: str) -> Imported:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{head}\n{TRAINS}")
    return import_launch([script], {"cluster": "dgx-h100"})


@pytest.mark.parametrize(
    ("head", "gpus"),
    [
        # chunks of GPUs, wherever they lie: 4 x 4, 2 x 8 + 1 x 0
        ("#PBS -l select=4:ncpus=64:ngpus=4:mem=400gb,walltime=24:00:00", 16),
        ("#PBS -lselect=2:ngpus=8+1:ncpus=4", 16),
        ("#PBS -q gpu -l select=4:ngpus=8 -l place=scatter:excl", 32),
        # chunks without GPUs: whole servers of 8 (ALCF: select=8:system=polaris)
        ("#PBS -l select=8:system=polaris\n#PBS -l place=scatter\n#PBS -A me # mine", 64),
        ("#PBS -l nodes=4:ppn=8:gpus=4", 16),
        ("#PBS -l nodes=2:ppn=32", 16),
        ("#SBATCH -N 4 --gpus-per-node=8 -t 2:00:00 # of them all", 32),
        ("#SBATCH -N2 --comment 'two -N 9'\n#SBATCH --gres=gpu:4,nvme:1", 8),
        ("cat > job.sh <<END\n#SBATCH --nodes=3\nEND\nsbatch job.sh", 24),
        ("#PBS -l nodes=node01+node02", 16),
        ("#PBS -l ngpus=16\n#PBS -l ncpus=192", 16),
        ("#BSUB -nnodes 4\n#BSUB -W 2:00", 32),
        ('#BSUB -n 16\n#BSUB -R "span[ptile=4]"\n#BSUB -gpu "num=4:mode=shared"', 16),
        ('#BSUB -n 16 -R "span[ptile=8]"\n#BSUB -gpu num=1/task', 16),
        ('#BSUB -R "span[hosts=1]"\n#BSUB -R "rusage[ngpus_physical=8]"', 8),
        ("#BSUB -gpu num=8\n#BSUB -nnodes 2\n#BSUB -P 'an open quote", 16),
    ],
)
def test_gpus_of_a_head(head: str, gpus: int, tmp_path: Path) -> None:
    found = read(tmp_path, head)
    assert found.scenario.cluster.gpus == gpus
    assert not found.unknown


def test_lines_of_slurm_that_are_not_of_this_job_are_said(tmp_path: Path) -> None:
    """sbatch's manual: no line behind the first command; behind ``hetjob`` is another part."""
    for between in ("cd /work", "#SBATCH hetjob"):
        found = read(tmp_path, f"#SBATCH --nodes=2\n{between}\n#SBATCH --nodes=16")
        assert found.scenario.cluster.gpus == 16
        assert [place.line for place in found.unknown] == [4]
    found = read(tmp_path, "#SBATCH --nodes=2 --gpus=h100:8,a100:8")
    assert any("no number of accelerators of one kind" in note for note in found.notes)


def test_what_a_head_leaves_open_is_asked_for(tmp_path: Path) -> None:
    for head in ("#PBS -l select=<N>:ngpus=8", '#BSUB -n 16\n#BSUB -gpu "num=8"'):
        with pytest.raises(InputError, match=r"cluster\.gpus: not said"):
            read(tmp_path, head)


def test_heads_that_contradict_the_launch_are_refused(tmp_path: Path) -> None:
    head = "#PBS -l select=4:ngpus=8:ncpus=8,place=scatter\n#SBATCH --nodes=2"
    with pytest.raises(InputError, match=r"run\.nodes: 2 .*contradicts 4"):
        read(tmp_path, head)


def test_an_unknown_resource_is_said(tmp_path: Path) -> None:
    found = read(tmp_path, "#PBS -l select=2:ngpus=8,turbo=9")
    assert [place.key for place in found.unknown] == ["#PBS -l turbo"]


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        ("#PBS -l select=1,walltime=24:00:00", 86_400),
        ("#PBS -l walltime=5400", 5_400),
        ("#BSUB -W 2:30", 9_000),
        ("#BSUB -J x -W 90", 5_400),
        ("#PBS -N x", None),
    ],
)
def test_limit_of_time(head: str, seconds: float | None, tmp_path: Path) -> None:
    (tmp_path / "job").write_text(f"{head}\n")
    assert time_limit_s(tmp_path / "job") == seconds


def test_a_limit_that_is_no_time_is_refused(tmp_path: Path) -> None:
    for head in ("#PBS -l walltime=1:2:3:4", "#BSUB -W soon"):
        (tmp_path / "job").write_text(f"{head}\n")
        with pytest.raises(InputError, match="must be a time as"):
            time_limit_s(tmp_path / "job")
