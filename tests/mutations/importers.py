"""Every importer of today: sound files of it, and how a user hands one to the program.

A file goes the whole way: it is read, and what was read is predicted, scored or played, since a
reader that takes what breaks the next room is no reader.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import random
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer.main

from simulator.cli.main import app
from simulator.cli.options import errors_as_exit_codes
from simulator.events.step.user_actions import read_actions
from simulator.hardware.cluster import load_accelerator, load_cluster, load_node
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.logs.megatron_log import read_megatron_log
from simulator.interop.logs.mlperf_log import read_mlperf_log
from simulator.interop.logs.nccl_tests import is_nccl_tests, read_nccl_tests
from simulator.interop.logs.readers import reader_of
from simulator.interop.logs.torchtitan_log import read_torchtitan_log
from simulator.interop.rl_scripts import scenario_from_script
from simulator.interop.traces.kineto import read_trace
from simulator.measured.rows import read_runs
from simulator.scenario import load_scenario
from simulator.scoring.trace import measure
from simulator.software.profile import load_software
from simulator.workload.huggingface import read_config
from simulator.workload.recipe import Recipe
from tests.interop import launch_samples, log_samples, test_torchtune, trainer_samples
from tests.mutations.drawing import drawn, rl_documents
from tests.mutations.mutator import mutated

ROOT = Path(__file__).resolve().parents[2]
DATA, PROFILES = ROOT / "tests/data", ROOT / "hardware_profiles"

SECONDS_PER_MB, LEAST_S = 2.0, 4.0
"""A file may take so long a megabyte, and any file so long: a busy machine counts twice the seconds
of an idle one, and what grows with the square of a file takes minutes at such sizes."""

TIMES_SIZE, FLOOR_BYTES = 4, 96 * 2**20
"""Memory that a file may take: so many times its size and what any command needs to work in."""

HUNG_S = 60
WHOLE_EVERY = {"changed": 20, "drawn": 50}
READ_EVERY = {"changed": 4, "drawn": 16}
"""By mutator, every so many-th input is given to the command whatever its reader says; of importers
whose command is about the file itself (`Importer.whole`), so many-th that is read, besides: half of
what is drawn is read, and each asks for another answer, of a quarter of a second."""

MUTATORS = ("changed", "drawn")
"""What makes inputs: `mutator.mutated` of sound files, or `drawing.drawn`."""

GROWN_EVERY = 40
"""Every so many-th input is grown to some hundred kilobytes."""

FOLDERS = "FORESHARD_PROFILES"
COMMAND = typer.main.get_command(app)

SMALL = """
[model]
model_type = "llama"
name = "llama-tiny"
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
vocab_size = 256
max_position_embeddings = 128
[training]
sequence_length = 64
global_batch = 8
[cluster]
name = "dgx-h100"
gpus = 2
"""
"""The run of the logs."""

MIXTRAL = """
[model]
name = "mixtral-8x7b"
[training]
tokens = 1e12
sequence_length = 4096
global_batch = 128
precision = "bf16"
optimizer = "adamw"
moe_imbalance = 1.2
[cluster]
name = "dgx-h100"
gpus = 32
software = "megatron-core"
[layout]
tp = 2
pp = 2
ep = 4
micro_batch = 1
vpp = 2
sharding = "zero1"
recompute = "selective"
sequence_parallel = true
[goal]
minimize = "cost"
deadline_days = 240
budget_usd = 1e6
"""

OWN_ACCELERATOR = (PROFILES / "accelerators/v100-sxm2-16.toml").read_bytes()

NCCL_TEXT = b"""\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1073741824 maxBytes 8589934592 step: 2(factor) iters: 20
# Using devices
#  Rank  0 Group  0 Pid   4567 on       gpu1 device  0 [0x01] NVIDIA H100 PCIe
#  Rank  1 Group  0 Pid   4567 on       gpu1 device  1 [0x21] NVIDIA H100 PCIe
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1     48.6   21.58   21.58      0     48.6   21.58   21.58      0
     4194304       1048576     float     sum      -1     63.1   66.47   66.47      0     63.1   66.47   66.47      0
    16777216       4194304     float     sum      -1    118.0  142.18  142.18      0    118.0  142.18  142.18      0
    67108864      16777216     float     sum      -1    322.0  208.41  208.41      0    322.0  208.41  208.41      0
   268435456      67108864     float     sum      -1   1180.0  227.49  227.49      0   1180.0  227.49  227.49      0
  1073741824     268435456     float     sum      -1   4620.0  232.41  232.41      0   4620.0  232.41  232.41      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 115.68
"""  # noqa: E501

TIMES = ((2**20, 48.6), (2**22, 63.1), (2**24, 118.0), (2**26, 322.0), (2**28, 1180.0))
NCCL_JSON: dict[str, Any] = {
    "version": 2,
    "start_time": "2026-01-02 03:04:05",
    "args": ["all_reduce_perf", "-b", "8"],
    "config": {"devices": [{"rank": i, "hostname": "a", "device_info": "H100"} for i in (0, 1)]},
    "results": [
        {
            "size": size,
            "type": "float",
            "out_of_place": {"time": us, "alg_bw": size / us / 1e3, "bus_bw": size / us / 1e3},
            "in_place": {"time": us, "alg_bw": size / us / 1e3, "nwrong": "0"},
        }
        for size, us in TIMES
    ],
}
RCCL_JSON = [
    {
        **{"name": "AllReduce", "size": size, "type": "float", "redop": "sum", "inPlace": 0},
        **{"time": us, "algBw": size / us / 1e3, "busBw": size / us / 1e3 * 7 / 4, "wrong": "0"},
        **{"ranks": 8, "nodes": 1, "ranksPerNode": 8, "gpusPerRank": 1},
    }
    for size, us in TIMES
]

ACTIONS_CSV = (  # two micro-batches on two ranks
    b"0F0,0F1,,,0B0,0B1\n,1F0,1B0,1F1,1B1,\n",
    b"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    b"1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
    b"0UNSHARD,0F0,0F1,0I0,0W0,0I1,0W1,0REDUCE_GRAD\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n",
)
ACTIONS = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


@dataclass(frozen=True)
class Importer:
    """One format: its sound files, and the words with which a user hands one over."""

    name: str
    suffix: str
    kind: str
    """What its structure is (`mutator.STRUCTURES`)."""
    seeds: tuple[bytes, ...]
    read: Callable[[Path], object]
    """Its reader."""
    words: Callable[[Path], list[str]]
    """Path -> arguments of the command that goes on with it."""
    place: str = "input"
    """Path of the file below the folder of the run, without its suffix."""
    whole: bool = False
    """A part of the files that are read goes the whole way, whatever their number."""
    said_of: tuple[str, ...] = ()
    """What else a refusal may name."""


def _of(*paths: Path) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in paths)


def _json(*documents: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(document).encode() for document in documents)


def _text(*texts: str) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


def _table(rows: int) -> bytes:
    lines = (ROOT / "validation/runs/calibrate.csv").read_bytes().splitlines(keepends=True)
    return b"".join([lines[0], *lines[1 :: len(lines) // rows][:rows]])


def _nccl(path: Path) -> object:
    assert isinstance(is_nccl_tests(path), bool)
    return read_nccl_tests(path)


def _calibrate(path: Path) -> list[str]:
    out = path.parent / "out"
    return [
        *("calibrate", str(path), "--base-cluster", "dgx-h100", "--json"),
        *("--out-node", f"{out}-node.toml", "--out-cluster", f"{out}-cluster.toml"),
    ]


def _log_reader(read: Callable[..., object]) -> Callable[[Path], object]:
    return lambda path: read(path, Recipe(sequence_length=64, global_batch=8), 2)


def _log(kind: str, batch: int = 8) -> Callable[[Path], list[str]]:
    return lambda path: [
        *("validate", f"--{kind}-log", str(path), "--json"),
        *("--scenario", str(path.parent / "run.toml")),
        *("--set", f"training.global_batch={batch}"),
    ]


def _log_kinds() -> Iterator[Importer]:
    """One importer for each kind of log that a table describes, and for each form of history."""
    histories = {
        "history.csv": ("csv", _text(log_samples.CSV, log_samples.TIMED_CSV)),
        "history.jsonl": ("text", _text(log_samples.JSONL)),
        "trainer_state.json": ("json", _text(log_samples.TRAINER_STATE)),
        "events.out.tfevents": ("text", (log_samples.event_file(),)),
        "run.wandb": ("text", (log_samples.wandb_file(),)),
    }
    logs = {f"{kind}.log": ("text", _text(text)) for kind, text in log_samples.LOGS.items()}
    for name, (structure, seeds) in {**logs, **histories}.items():
        kind = name.removesuffix(".log") if name in logs else "history"
        # the name of a history tells its form: these keep it, for the folder of the run
        place, suffix = ("input", ".log") if name in logs else (name.partition(".")[0], "")
        suffix = suffix or name[name.index(".") :]
        yield Importer(
            name, suffix, structure, seeds, _log_reader(reader_of(kind)), _any_log, place
        )


def _any_log(path: Path) -> list[str]:
    return [
        *("validate", "--log", str(path), "--json"),
        *("--scenario", str(path.parent / "run.toml")),
        *("--set", "training.global_batch=8"),
    ]


def _launch(cluster: str, gpus: int = 8) -> Callable[[Path], object]:
    """What --from does with a file before it predicts; a cluster and a model are given."""
    given = {"cluster": cluster, "model": "llama-3.1-8b", "gpus": gpus}
    batch = ["training.sequence_length=2048", "training.global_batch=64"]
    return lambda path: import_launch([path], given, batch)


def _from(cluster: str, gpus: int = 8) -> Callable[[Path], list[str]]:
    return lambda path: [
        *("predict", "--from", str(path), "--json", "--cluster", cluster),
        *("--gpus", str(gpus)),
        *("--model", "llama-3.1-8b", "--set", "training.sequence_length=2048"),
        *("--set", "training.global_batch=64"),
    ]


def _from_files() -> Iterator[Importer]:
    """One importer for each format of launch files."""
    for name, suffix, kind, seeds in (
        (
            "launch.sh",
            ".sh",
            "text",
            (
                *(launch_samples.MEGATRON, launch_samples.MLPERF),
                *(launch_samples.EVALUATED, launch_samples.MLPERF_LORA),
                *(launch_samples.REGISTERED, launch_samples.LAUNCHED_FSDP),
            ),
        ),
        ("torchtitan.toml", ".toml", "toml", (launch_samples.TORCHTITAN,)),
        ("deepspeed.json", ".json", "json", (json.dumps(launch_samples.DEEPSPEED),)),
        (
            "trainer.json",
            ".json",
            "json",
            tuple(map(json.dumps, (launch_samples.TRAINER, launch_samples.FACTORY))),
        ),
        ("accelerate.yaml", ".yaml", "text", (launch_samples.ACCELERATE,)),
        ("recipe.yaml", ".yaml", "text", (launch_samples.RECIPE, launch_samples.PRIMUS)),
        ("topology.txt", ".txt", "text", (launch_samples.TOPOLOGY,)),
        ("fsdp2.py", ".py", "text", (launch_samples.FSDP2,)),
        ("maxtext.sh", ".sh", "text", (launch_samples.MAXTEXT,)),
        ("neuronx.yaml", ".yaml", "text", (launch_samples.NEURONX_SMALL,)),
        ("torchtune.yaml", ".yaml", "text", (test_torchtune.FULL,)),
        ("gpt_neox.yaml", ".yaml", "text", (launch_samples.NEOX,)),
        ("nemo_2.py", ".py", "text", (launch_samples.NEMO_2,)),
        ("job_heads.sh", ".sh", "text", (launch_samples.HEADS,)),
        *(
            (name, Path(name).suffix, "text", (text,))
            for name, text in trainer_samples.SAMPLES.items()
        ),
    ):
        here = {"maxtext.sh": "tpu7x", "neuronx.yaml": "trn1-32xlarge"}.get(name, "dgx-h100")
        gpus = 32 if name == "launch.sh" else 8  # its MLPerf file has tp 4, pp 8
        read, words = _launch(here, gpus), _from(here, gpus)
        yield Importer(name, suffix, kind, _text(*seeds), read, words, said_of=("--from",))


RL = {"cluster": "dgx-h100", "gpus": 16, "model": "qwen3-8b"}
RL_SIZES = ("rl.answer_tokens=512", "training.sequence_length=8192")

TINY = ["predict", "--model", "llama-3.1-8b", "--gpus", "8", "--json"]
UNTRAINED = "command line: training.precision: "
"""Of a cluster of an accelerator that has no bf16, which is no fault of its file."""
LOGS = DATA / "logs"
PUBLIC = (LOGS / "megatron_mi300x_2025.log").read_text()


def _whole_log() -> bytes:
    """The log of a small run with the whole list of arguments that a public one has."""
    small = (LOGS / "megatron_2025.log").read_text()
    own = dict(re.findall(r"^  (\w+) \.+ (\S+)$", small, flags=re.M))
    own |= {"num_attention_heads": "4", "sequence_parallel": "False", "ffn_hidden_size": "128"}
    listed = re.search(r"^-+ arguments.*?end of arguments -+\n", PUBLIC, flags=re.M | re.S)
    assert listed is not None
    whole = re.sub(
        r"^(  (\w+) \.+) .*$", lambda m: f"{m[1]} {own.get(m[2], m[0][len(m[1]) + 1:])}",
        listed[0], flags=re.M,
    )  # fmt: skip
    return (whole + small[small.index("[Rank 0]") :]).encode()


IMPORTERS = {
    importer.name: importer
    for importer in (
        Importer(
            "scenario.toml",
            ".toml",
            "toml",
            (*_text(SMALL, MIXTRAL), *_of(ROOT / "examples/llama-3.1-70b.toml")),
            load_scenario,
            lambda path: ["predict", str(path), "--json"],
            whole=True,
            said_of=("config.json",),  # of a folder that is named as the model
        ),
        Importer(
            "config.json",
            ".json",
            "json",
            _of(*sorted((ROOT / "simulator/workload/zoo").glob("*.json"))),
            read_config,
            lambda path: [
                *("predict", "--model", str(path), "--cluster", "dgx-h100"),
                *("--gpus", "8", "--json"),
            ],
            whole=True,
            # a field of the command line that a trace cannot follow, which is named by its model
            said_of=("command line: training.",),
        ),
        Importer(
            "accelerator.toml",
            ".toml",
            "toml",
            (OWN_ACCELERATOR, *_of(PROFILES / "accelerators/h100-nvl.toml")),
            lambda path: load_accelerator(str(path)),
            lambda path: [*TINY, "--set", "training.precision=fp16", "--cluster", "of-own-device"],
            "accelerators/own",
            said_of=("of-own-device", "own"),
            whole=True,
        ),
        Importer(
            "node.toml",
            ".toml",
            "toml",
            _of(PROFILES / "nodes/dgx-h100.toml", PROFILES / "nodes/dgx-a100.toml"),
            lambda path: load_node(str(path)),
            lambda path: [*TINY, "--cluster", "of-own-server"],
            "nodes/own",
            said_of=("of-own-server", "own", UNTRAINED),
            whole=True,
        ),
        Importer(
            "cluster.toml",
            ".toml",
            "toml",
            _of(PROFILES / "clusters/selene.toml", PROFILES / "clusters/gcp-a3-mega.toml"),
            lambda path: load_cluster(str(path), 8, where=str(path)),
            lambda path: [*TINY, "--cluster", str(path)],
            "clusters/own",
            whole=True,
            said_of=(UNTRAINED,),
        ),
        Importer(
            "software.toml",
            ".toml",
            "toml",
            _of(PROFILES / "software/torchtune-2024-eager.toml")
            + _of(PROFILES / "software/megatron-lm-2022.toml"),
            lambda path: load_software(str(path)),
            lambda path: [*TINY, "--cluster", "dgx-h100", "--software", str(path)],
            "software/own",
            whole=True,
            said_of=("own does not train",),
        ),
        Importer(
            "runs.csv",
            ".csv",
            "csv",
            (_table(3), _table(1)),
            lambda path: read_runs([path]),
            lambda path: ["validate", str(path), "--json"],
            whole=True,
        ),
        Importer(
            "megatron.log",
            ".log",
            "text",
            (*_of(LOGS / "megatron_2025.log", LOGS / "megatron_2023.log"), _whole_log()),
            _log_reader(read_megatron_log),
            _log("megatron"),
        ),
        Importer(
            "torchtitan.log",
            ".log",
            "text",
            _of(LOGS / "torchtitan_2024.log", LOGS / "torchtitan_0.3.log"),
            _log_reader(read_torchtitan_log),
            _log("torchtitan"),
        ),
        Importer(
            "mlperf.log",
            ".log",
            "text",
            _of(LOGS / "mlperf_4.1.log"),
            _log_reader(read_mlperf_log),
            _log("mlperf", batch=4),
        ),
        *_log_kinds(),
        Importer(
            "kineto.json",
            ".json",
            "json",
            _of(DATA / "kineto_v100_step.json"),
            lambda path: measure(read_trace(path)),
            lambda path: [
                *("validate", "--trace", str(path), "--json"),
                *("--scenario", str(path.parent / "run.toml")),
            ],
        ),
        *_from_files(),
        Importer(
            "launch.log",
            ".log",
            "text",
            (
                *_of(LOGS / "megatron_2025.log", LOGS / "torchtitan_0.3.log"),
                *(*_of(LOGS / "mlperf_4.1.log"), PUBLIC.encode()),
            ),
            _launch("dgx-h100"),
            _from("dgx-h100"),
            said_of=("--from",),
        ),
        Importer(
            "listed.log",
            ".log",
            "text",
            _text(*(text + log_samples.LOGS[kind] for kind, text in log_samples.LISTINGS.items())),
            _launch("dgx-h100"),
            _from("dgx-h100"),
            said_of=("--from",),
        ),
        Importer(
            "rl.yaml",
            ".yaml",
            "text",
            _json(*rl_documents()),
            lambda path: scenario_from_script(path, RL, RL_SIZES),
            lambda path: [
                *("rl", "--from", str(path), "--json", "--as-given"),
                *(word for name, value in RL.items() for word in (f"--{name}", str(value))),
                *(word for size in RL_SIZES for word in ("--set", size)),
            ],
            said_of=("command line: ", "--from"),
        ),
        Importer("nccl-tests.txt", ".txt", "text", (NCCL_TEXT,), _nccl, _calibrate),
        Importer(
            "nccl-tests.json", ".json", "json", _json(NCCL_JSON, RCCL_JSON), _nccl, _calibrate
        ),
        *(
            Importer(
                f"actions{suffix}",
                suffix,
                kind,
                seeds,
                read_actions,
                lambda path: [
                    *("simulate", str(path.parent / "run.toml"), "--json"),
                    *("--set", "layout.pp=2", "--set", "training.global_batch=2"),
                    *("--actions", str(path)),
                ],
            )
            for suffix, kind, seeds in (
                (".csv", "csv", ACTIONS_CSV),
                (".json", "json", _json({"actions": ACTIONS}, [" ".join(row) for row in ACTIONS])),
                (".toml", "toml", _text(f"actions = {json.dumps(ACTIONS)}\n")),
            )
        ),
    )
}


@dataclass
class Tally:
    """What the inputs of one importer came to."""

    inputs: int = 0
    taken: int = 0
    """Read and answered: exit 0, or 1 where nothing fits."""
    whole: int = 0
    """Given to the command, which predicts, scores or plays what was read."""
    refused: int = 0
    """Exit 2 with the file's name."""
    crashes: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    """Of all inputs."""
    slowest_s_per_mb: float = 0.0
    """Of those of 256 KiB and more."""
    most_memory_bytes: int = 0
    """Beyond what stood before, at its highest, of any input."""


class Room:
    """A folder in which inputs are handed over one after the other; profiles of one's own in it.

    To be entered before anything is given: ``with Room(folder, importer) as room``. Unless it is
    `warm`, commands whose fits take a second to load are loaded by the first input that needs them.
    Inputs are sound files "changed" by the first mutator, or "drawn" by the second.
    """

    def __init__(
        self, folder: Path, importer: Importer, *, warm: bool = True, mutator: str = "changed"
    ) -> None:
        self.importer, self.tally, self._warm = importer, Tally(), warm
        self._mutator = mutator
        self._folder = folder
        self._path = folder / f"{importer.place}{importer.suffix}"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        (folder / "run.toml").write_text(SMALL)
        for name, text in (
            ("clusters/of-own-device", 'base = "dgx-1v"\nnode = "of-own-device"\n'),
            ("nodes/of-own-device", 'base = "dgx-1v"\naccelerator = "own"\n'),
            ("clusters/of-own-server", 'base = "dgx-h100"\nnode = "own"\n'),
        ):
            place = folder / f"{name}.toml"
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)

    def __enter__(self) -> Room:
        self._before = os.environ.get(FOLDERS)
        os.environ[FOLDERS] = str(self._folder)
        # what is loaded once is no input's memory: LLVM comes with the first long step
        importlib.import_module("llvmlite.binding")
        problem = self._try(self.importer.seeds[0], whole=self._warm)
        assert not problem and self.tally.taken, problem or "a sound file was refused"
        self.tally = Tally()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is None:
            del os.environ[FOLDERS]
        else:
            os.environ[FOLDERS] = self._before

    def run(self, number: int) -> None:
        """Hand over the input of a number, the same one every time."""
        seed = "drawn " * (self._mutator == "drawn")
        chance = random.Random(f"{seed}{self.importer.name} {number}")
        grown = number % GROWN_EVERY == GROWN_EVERY - 1
        self.give(self.draw(chance, grown=grown), whole=number % WHOLE_EVERY[self._mutator] == 0)

    def draw(self, chance: random.Random, *, grown: bool = False) -> bytes:
        importer = self.importer
        if self._mutator == "drawn":
            return drawn(importer.name, importer.seeds, chance, large=grown)
        return mutated(chance.choice(importer.seeds), importer.kind, chance, grown=grown)

    def give(self, raw: bytes, *, whole: bool = True) -> None:
        """Hand over one input, to the command too where `whole`, and count what comes of it."""
        self.tally.inputs += 1
        before, begun = _resident_bytes(), time.process_time()
        problem = self._try(raw, whole=whole)
        took, memory = time.process_time() - begun, _peak_bytes() - before
        size_mb = len(raw) / 1e6
        self.tally.slowest_s = max(self.tally.slowest_s, took)
        if len(raw) >= 2**18:
            per_mb = took / size_mb
            self.tally.slowest_s_per_mb = max(self.tally.slowest_s_per_mb, per_mb)
        self.tally.most_memory_bytes = max(self.tally.most_memory_bytes, memory)
        if not problem and took > max(LEAST_S, SECONDS_PER_MB * size_mb):
            problem = f"took {took:.1f} s for {size_mb:.3f} MB"
        if not problem and memory > TIMES_SIZE * len(raw) + FLOOR_BYTES:
            problem = f"took {memory / 2**20:.0f} MiB for {size_mb:.3f} MB"
        if problem:
            self.tally.crashes.append(problem)

    def _try(self, raw: bytes, *, whole: bool) -> str:
        """What is wrong with the answer to one input; blank where nothing is."""
        self._path.write_bytes(raw)
        out, err = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(err), _alarm():
                code = self._run(whole)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"{type(error).__name__}: {str(error)[:300]} ({_place(error)})"
        if code == 2:
            self.tally.refused += 1
            return self._wrong_refusal(err.getvalue())
        self.tally.taken += 1
        if code not in (0, 1):
            return f"exit code {code}"
        return _wrong_document(out.getvalue()) if code == 0 else ""

    def _run(self, whole: bool) -> int:
        code = 2
        with suppress(typer.Exit), errors_as_exit_codes():
            self.importer.read(self._path)
            code = 0
        if not (whole or (code == 0 and self.importer.whole and self._follows())):
            return code
        self.tally.whole += 1
        try:
            ended = COMMAND.main(self.importer.words(self._path), standalone_mode=False)
        except typer.Exit as error:
            ended = error.exit_code
        return ended if isinstance(ended, int) else 0

    def _follows(self) -> bool:
        return self.tally.inputs % READ_EVERY[self._mutator] == 0

    def _wrong_refusal(self, said: str) -> str:
        lines = said.splitlines()
        if not lines:
            return "exit 2 without a word"
        names = (str(self._path), self._path.name, "run.toml", *self.importer.said_of)
        if not any(name in said for name in names):
            return f"no file is named: {lines[0][:200]}"
        if len(said) > 200_000:
            return f"a message of {len(said)} characters"
        return ""


def _wrong_document(text: str) -> str:
    try:
        json.loads(text or "0", parse_constant=_no_number)
    except ValueError as error:
        return f"no JSON: {error}"
    return ""


def _no_number(word: str) -> None:
    raise ValueError(word)


def _place(error: BaseException) -> str:
    """Innermost line of the program in a traceback."""
    place, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if "simulator" in name:
            place = f"{name.rpartition('simulator/')[2]}:{step.tb_lineno}"
        step = step.tb_next
    return place


class Hung(BaseException):
    """An input that does not come to an end."""


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hung(f"over {HUNG_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HUNG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _resident_bytes() -> int:
    """Resident memory, from which on the peak is counted again (Linux; elsewhere it only grows)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return _of_status("VmRSS")
    return _peak_bytes()


def _peak_bytes() -> int:
    with suppress(OSError):
        return _of_status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _of_status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(name)
