"""Several launch files as one scenario: what they state, what follows from it, what is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from simulator.errors import InputError, first_of
from simulator.hardware.cluster import load_cluster
from simulator.interop.dialects.megatron import layers_by_stage
from simulator.interop.dialects.settings import (
    CHECKPOINTS,
    EVERY_STEPS,
    Reading,
    Stated,
    Unset,
    as_whole,
    shown,
)
from simulator.interop.dialects.trainer import TRAINERS
from simulator.interop.launch_files.imported import Imported, Origin
from simulator.interop.launch_files.recognising import RUN_FIELDS, names_of, read_launch_files
from simulator.records import dataclass
from simulator.scenario import Scenario, cluster_options, make_scenario
from simulator.software.releases import stack_of
from simulator.software.software_section import first_running
from simulator.spellings import override_written_out
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import LARGEST
from simulator.workload.training_section import with_tasks

_ASKED = {
    "model": ("what is trained", "--model NAME, or --from config.json"),
    "cluster.name": ("which machines", "--cluster NAME (foreshard profiles list clusters)"),
    "cluster.gpus": ("how many accelerators", "--gpus N"),
    "training.sequence_length": ("tokens per sequence", "--set training.sequence_length=N"),
    "training.global_batch": ("sequences per step", "--set training.global_batch=N"),
}
"""Fields without which nothing can be said: what each is, and what gives it."""


_RUN = frozenset(f"run.{name}" for name in RUN_FIELDS)
"""Fields of a scenario's section [run]."""

_TOKENS = "model.vocab_size"
"""What an option says of a model whose other sizes stand in the files."""

_ADAMW = "run.adamw"
"""Kernels of AdamW that a trainer asks for, which count where torch's optimizer is the step."""

_TORCH_STEPS = ("plain-ddp", "torchtitan")
"""Frameworks whose optimizer is one of torch's (``stack_of``)."""

_WORDS = ("model.name", "cluster.name", "cluster.software", "layout.sharding")
"""Fields whose value is a word; of the others that are asked for here, it is a whole number."""


def import_launch(
    files: Iterable[Path | str],
    names: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
) -> Imported:
    """Read launch files and make the scenario that they describe together.

    Parameters
    ----------
    files : paths
        Scripts, configurations and topologies of one run.
    names : mapping, optional
        ``model``, ``cluster``, ``gpus``, ``software``; what is given stands above the files.
    overrides : iterable of str, optional
        ``section.field=value``; they stand above everything.

    Raises
    ------
    InputError
        With every unreadable value, every contradiction with both its places, or everything that
        is missing with the option that gives it.
    """
    overrides = [override_written_out(text) for text in overrides]
    names = cluster_options(names or {}, overrides)
    paths, readings = read_launch_files(files)
    given = {
        **{f"cluster.{k}": v for k, v in _named(names).items() if k != "model"},
        **{text.partition("=")[0].strip(): text for text in overrides},
    }
    merging = _Merging(readings, given, names.get("model"))
    merging.gather()
    merging.follow()
    if merging.problems:
        raise InputError(first_of(merging.problems, "--from"))
    others = [text for text in overrides if text.partition("=")[0].strip() != _TOKENS]
    return merging.result(names, others if merging.architecture else overrides, paths)


@contextmanager
def files_without_option(file: Path | str) -> Iterator[None]:
    """Name the file in problems of a command that takes files as they stand, without ``--from``."""
    try:
        yield
    except InputError as error:
        said = (re.sub(r"^--from: ", f"{file}: ", text) for text in error.problems)
        said = (text.replace("give it with --from too", "give it beside this one") for text in said)
        said = (text.replace("or --from config.json", "or config.json beside it") for text in said)
        raise InputError(said) from None


def _named(names: Mapping[str, Any]) -> dict[str, Any]:
    keys = {"model": "model", "cluster": "name", "gpus": "gpus", "software": "software"}
    return {keys[k]: v for k, v in names.items() if v is not None and k in keys}


@dataclass
class _Merging:
    """Fields on their way into a scenario."""

    readings: list[Reading]
    given: dict[str, Any]
    """What options say: fields that files need not agree on."""
    model: Any
    fields: dict[str, Origin] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    architecture: Architecture | None = None
    sizes_alone: bool = False
    """The files say a model's sizes, but not how many tokens it knows."""

    def gather(self) -> None:
        """Take what every file states; two that differ are a contradiction."""
        for reading in self.readings:
            self.problems += reading.problems
            self.notes += [
                note for note in reading.notes if _TOKENS not in self.given or _TOKENS not in note
            ]
            for unset in reading.unset:
                self._ask_for(unset)
            last = {item.field: item for item in reading.stated}
            for item in last.values():
                self._take(item)
        self._ask_for_files()
        self._take_usual()
        self._choose_architecture()
        self._count_devices()
        self._check_links()
        size = self._get("cluster.gpus")
        if "cluster.gpus" in self.given and isinstance(self.given["cluster.gpus"], int):
            self._put("cluster.gpus", self.given["cluster.gpus"], "--gpus")
        elif size is None:
            self._count_gpus()
        elif "cluster.gpus" not in self.given:
            self._check_gpus(size)

    def _ask_for(self, item: Unset) -> None:
        """A value that only the user knows: asked for, unless an option says it."""
        section, _, name = item.field.partition(".")
        rule = f"{item.place}: {item.value[:120]!r} {item.why}"
        sized = section == "run" and name in ("nodes", "per_node")
        if item.field in self.given or (sized and "cluster.gpus" in self.given):
            return
        if sized:
            self.notes.append(f"{rule}: --gpus N says how many there are in all")
        elif section in ("layout", "training", "distillation"):
            what = "N" if section != "distillation" else "NAME"
            self.problems.append(f"{rule}: --set {item.field}={what} says it")
        else:
            self.notes.append(f"{rule}: not counted")

    def _check_links(self) -> None:
        """A server's own links beside those of the cluster that was named."""
        name = self.given.get("cluster.name") or self._get("cluster.name")
        linked = self.fields.get("run.nvlink")
        if linked is None or not isinstance(name, str) or "=" in name:
            return
        node, gpus = load_cluster(name, 1, where="--cluster").node, self._get("run.per_node")
        joined = node.scale_up.kind == "nvlink"
        if (gpus, linked.value) != (node.accelerators, joined):
            self.notes.append(
                f"a server of {name} has {node.accelerators} GPUs"
                f" {'joined by' if joined else 'without'} NVLink, not these: foreshard cluster init"
                f" NAME --gpu GPU --topo {linked.source.partition(': ')[0]} makes theirs"
            )

    def _ask_for_files(self) -> None:
        """Files that hold more settings; DeepSpeed's and accelerate's say how states are shared."""
        given = names_of(self.readings)
        shared = {"layout.sharding"} & {*self.fields, *self.given}
        named = [(reading, item) for reading in self.readings for item in reading.named]
        for reading, setting in named:
            if not isinstance(setting.value, str):
                self.problems.append(f"{setting.place}: must be followed by a file")
                continue
            if Path(setting.value).name in given:
                continue
            rule = f"{setting.place}: {setting.value[:120]!r} says more: give it with --from too"
            of_accelerate = reading.kind == "accelerate launch"
            decides = "deepspeed" in setting.key or setting.key == "ds_config" or of_accelerate
            if decides and not shared:
                how = "--set layout.sharding=MODE (ddp, zero1, zero2 or zero3)"
                if of_accelerate:
                    how = f"--software NAME (plain-ddp, torch-fsdp or deepspeed) and {how}"
                self.problems.append(f"{rule}, or {how}")
            elif setting.key == "job.config_file" and self._unnamed():
                self.problems.append(rule)
            else:
                self.notes.append(rule)

    def _unnamed(self) -> bool:
        """Whether neither options nor files say what is trained."""
        named = self.model, self._get("model.name"), self._get("run.model")
        return not any(named) and all(r.architecture is None for r in self.readings)

    def _check_gpus(self, size: int) -> None:
        nodes, each = self._get("run.nodes"), self._get("run.per_node")
        if nodes and each and nodes * each != size:
            at = [self._source(name) for name in ("cluster.gpus", "run.nodes")]
            self.problems.append(
                f"cluster.gpus: {size} ({at[0]}) contradicts {nodes} x {each} ({at[1]});"
                " --gpus N decides"
            )

    def _take(self, item: Stated) -> None:
        before = self.fields.get(item.field)
        if before is None or before.value == item.value:
            self.fields[item.field] = Origin(item.field, item.value, str(item.place))
        elif item.field not in self.given and not item.field.startswith("goal."):
            decides = f"--set {item.field}=VALUE decides"
            if item.field.startswith("run.") and item.field not in CHECKPOINTS:
                decides = "--gpus N decides"
                if "cluster.gpus" in self.given:
                    return
            self.problems.append(
                f"{item.field}: {shown(before.value)} ({before.source}) contradicts"
                f" {shown(item.value)} ({item.place}); {decides}"
            )

    def _take_usual(self) -> None:
        """Defaults of trainers for what no file and no option says; each is printed."""
        usual = (item for reading in self.readings for item in reading.usual)
        filled: dict[str, list[str]] = {}
        for item in sorted(usual, key=lambda item: (item.field, item.path)):
            if self._get(item.field) is None:
                source = f"{item.path}: {item.why}"
                self._put(item.field, item.value, source)
                if item.field != _ADAMW:  # said where it is applied
                    filled.setdefault(source, []).append(f"{item.field} = {shown(item.value)}")
        self.notes += [f"{source}: {', '.join(fields)}" for source, fields in filled.items()]

    def _choose_architecture(self) -> None:
        """The model of a config.json, else that of arguments; their sizes must agree."""
        readings = [reading for reading in self.readings if reading.architecture is not None]
        if self.model is not None or not readings:
            return
        configs = [reading for reading in readings if reading.kind == "Hugging Face config"]
        chosen = (configs or readings)[0]
        arch = chosen.architecture
        assert arch is not None, "readings without one were left out"
        if not arch.vocabulary or _TOKENS in self.given:
            tokens = self._get(_TOKENS)
            self.sizes_alone = tokens is None
            if tokens is None or not 1 <= tokens <= LARGEST:
                if _TOKENS in self.given:
                    rule = f"must be a whole number from 1 to {LARGEST}"
                    self.problems.append(f"--set: {_TOKENS}: {rule}, got {self.given[_TOKENS]!r}")
                return
            arch = replace(arch, vocabulary=tokens)
        self.architecture = arch
        sizes = {"layers": arch.layers, "hidden": arch.hidden}
        if arch.attentions:
            sizes["heads"] = arch.attentions[0].heads
        for name, value in sizes.items():
            stated = self.fields.get(f"size.{name}")
            if stated is not None and stated.value != value:
                self.problems.append(
                    f"model {name}: {value} ({chosen.path}) contradicts {stated.value}"
                    f" ({stated.source}); --model NAME decides"
                )
        if arch.name in presets.names() and presets.load(arch.name) == arch:
            self._put("model.name", arch.name, f"sizes in {chosen.path}")
        else:
            self._put("model.name", arch.name, chosen.path)

    def _get(self, name: str) -> Any:
        """Value of a field, that of an option before that of the files."""
        said = self.given.get(name)
        if isinstance(said, str) and "=" in said:
            text = said.partition("=")[2].strip().strip("'\"")
            return text if name in _WORDS else as_whole(text)
        field = self.fields.get(name)
        return None if field is None else field.value

    def _source(self, name: str) -> str:
        field = self.fields.get(name)
        if name in self.given and not isinstance(self.given[name], str):
            return f"--{name.rpartition('.')[2]}"
        return "--set" if field is None or name in self.given else field.source

    def _put(self, name: str, value: Any, source: str) -> None:
        self.fields[name] = Origin(name, value, source)

    def _count_gpus(self) -> None:
        dp = self._get("layout.dp")
        if dp and self._get("run.nodes") is None:  # its degrees are all that there are
            split = math.prod(self._get(f"layout.{name}") or 1 for name in ("tp", "pp", "cp"))
            self._put("cluster.gpus", dp * split, self._source("layout.dp"))
            return
        nodes, accelerators = self._get("run.nodes"), self._get("run.per_node")
        source = "run.nodes" if nodes else "run.per_node"
        if nodes and not accelerators and isinstance(self.given.get("cluster.name"), str):
            accelerators = load_cluster(
                self.given["cluster.name"], 1, where="--cluster"
            ).node.accelerators
        if nodes and accelerators:
            self._put(
                "cluster.gpus",
                nodes * accelerators,
                f"{nodes} x {accelerators}, {self._source(source)}",
            )

    def _per_node(self) -> int | None:
        """Accelerators of a server: as the files say, else as the cluster has."""
        name = self.given.get("cluster.name") or self._get("cluster.name")
        stated = self._get("run.per_node")
        if stated is not None or not isinstance(name, str) or "=" in name:
            return None if stated is None else int(stated)
        return load_cluster(name, 1, where="--cluster").node.accelerators

    def _programs(self) -> int:
        """Devices that a program sees in an accelerator of the cluster."""
        name = self.given.get("cluster.name") or self._get("cluster.name")
        if not isinstance(name, str) or "=" in name:
            return 1
        return load_cluster(name, 1, where="--cluster").accelerator.program_devices

    def _count_devices(self) -> None:
        """Accelerators of a program's devices; MaxText counts all in these."""
        for name, target in (
            ("run.devices", "cluster.gpus"),
            ("run.shard_devices", "run.shard_degree"),
        ):
            devices = self._get(name)
            if devices and self._get(target) is None and devices % self._programs() == 0:
                self._put(target, devices // self._programs(), self._source(name))

    def _fewest(self) -> int:
        """Accelerators that one copy of the layout takes: all that run it are a multiple."""
        tp, pp, cp, ep = (self._get(f"layout.{name}") or 1 for name in ("tp", "pp", "cp", "ep"))
        etp = self._get("layout.etp") or 1
        return int(pp * math.lcm(tp * cp, ep * etp))

    def _too_few(self, gpus: int) -> None:
        """Scripts that say one server, to be changed by who runs them, are common."""
        parts = {name: self._get(f"layout.{name}") or 1 for name in ("tp", "pp", "cp", "ep", "etp")}
        shown_ = " ".join(f"{name} {count}" for name, count in parts.items() if count > 1)
        least, source = self._fewest(), self._source("cluster.gpus")
        nearest = max(round(gpus / least), 1) * least
        place = self._source(f"layout.{max(parts, key=lambda name: parts[name])}")
        self.problems.append(
            f"--from: cluster.gpus: must be a multiple of {least}, which {shown_} take in all"
            f" ({place}), got {gpus} ({source}); --gpus {nearest} decides"
        )

    def follow(self) -> None:
        """Work out what follows from what is stated."""
        gpus = self._get("cluster.gpus")
        split = 1
        for name in ("tp", "pp", "cp"):
            split *= self._get(f"layout.{name}") or 1
        dp = None
        if isinstance(gpus, int) and gpus % self._fewest() == 0:
            dp = gpus // split
        elif isinstance(gpus, int):
            self._too_few(gpus)
        if self._get("layout.tp") == 1 and self._get("layout.sequence_parallel"):
            self._put("layout.sequence_parallel", False, self._source("layout.tp"))
        if "run.checkpoints.interval_s" in self.given or EVERY_STEPS in self.given:
            self.fields.pop(EVERY_STEPS, None)
        self._follow_batch(dp)
        self._follow_samples()
        self._follow_groups(dp)
        model = self._model()
        layers = model.layers if model else None
        if model and not model.is_moe and (self._get("layout.etp") or 1) > 1:
            source = self._source("layout.etp")
            self._put("layout.etp", 1, source)
            self.notes.append(f"{source}: the model has no experts: as if it were not said")
        self._follow_loss(model)
        self._follow_towers(model)
        self._follow_states(layers)
        if model and self._get("run.bucket_by_width"):
            source = self._source("run.bucket_by_width")
            self._put("software.bucket_bytes", 2 * model.hidden**2, source)
        per_stage, pp = self._get("run.layers_per_stage"), self._get("layout.pp") or 1
        if per_stage and layers:
            stages, rounded = -(-layers // per_stage), self._get("run.stages_rounded")
            whole = layers % (per_stage * pp) == 0 or rounded
            vpp = -(-stages // pp) if rounded == "up" else stages // pp
            if whole and vpp > 0:
                self._put("layout.vpp", vpp, self._source("run.layers_per_stage"))
        self._follow_blocks(layers, pp)
        if layers and self._get("run.offload_inputs") and layers % pp == 0:
            source = self._source("run.offload_inputs")
            self._put("layout.offload_layers", layers // pp, source)
        batch, length = self._get("training.global_batch"), self._get("training.sequence_length")
        steps, samples = self._get("run.steps"), self._get("run.samples")
        if self._get("training.tokens") is None and length and (samples or (steps and batch)):
            source = self._source("run.samples" if samples else "run.steps")
            self._put("training.tokens", float((samples or steps * batch) * length), source)

    def _follow_blocks(self, layers: int | None, pp: int) -> None:
        """Layers of uneven stages, and which blocks are computed again."""
        if layers and pp > 1 and self._get("layout.stages") is None:
            self._follow_ends(layers, pp)
        every, source = self._get("run.recompute_every"), self._source("run.recompute_every")
        if every and layers is None:
            rule = "layers of the model are not known: --model NAME says them"
            self.problems.append(f"{source}: {rule}")
        elif every and layers:
            count = layers // pp // every
            if count == 0:
                self._put("layout.recompute", "none", source)
            elif count < layers // pp:
                self._put("layout.recompute_layers", count, source)

    def _follow_ends(self, layers: int, pp: int) -> None:
        """Stages of torchtitan: embedding and head count as so many layers of the first and last.

        distributed/pipeline_parallel.py of 0.2: generate_llm_fqn_per_model_part.
        """
        first, last = self._get("run.first_less"), self._get("run.last_less")
        if first is None or last is None:
            return
        whole, per_stage = layers + first + last, self._get("run.layers_per_stage")
        count = -(-whole // per_stage) if per_stage else pp * (self._get("layout.vpp") or 1)
        if count % pp or count > whole:
            return
        dealt = [whole // count + (stage < whole % count) for stage in range(count)]
        dealt[0] -= first
        dealt[-1] -= last
        source = self._source("run.first_less")
        if min(dealt) >= 0 and len(set(dealt)) > 1:
            self._put("layout.vpp", count // pp, source)
            self._put("layout.stages", dealt, source)

    def _model(self) -> Architecture | None:
        """The model as files have it, or the zoo's of the name that is given."""
        if self.model is None and self.architecture is not None:
            return self.architecture
        name = self._get("model.name") if self.model is None else str(self.model)
        try:
            return presets.load(name) if isinstance(name, str) else None
        except InputError:
            return None  # said where the scenario is made

    def _follow_towers(self, model: Architecture | None) -> None:
        """Frozen parts of a model with towers; of one of text alone there is one part."""
        parts, source = self._get("run.frozen_parts"), self._source("run.frozen_parts")
        if not parts or "training.frozen_parts" in self.given:
            return
        if model is not None and model.tower_layers:
            self._put("training.frozen_parts", list(dict.fromkeys(parts)), source)
        elif "text" in parts:
            rule = "a frozen language model needs a tower, which the model that is known has not"
            self.problems.append(f"{source}: {rule}: --model config.json says its towers")

    def _follow_states(self, layers: int | None) -> None:
        """Frozen first layers, and states of the type in which weights were loaded."""
        trained = self._get("run.trained_layers")
        if trained and layers is None:
            at = self._source("run.trained_layers")
            self.problems.append(f"{at}: layers of the model are not known: --model NAME says them")
        elif trained and layers and trained < layers:
            self._put(
                "training.frozen_layers", layers - trained, self._source("run.trained_layers")
            )
        dtype, source = self._get("run.loaded_dtype"), self._source("run.loaded_dtype")
        sharded = self._get("layout.sharding") not in (None, "ddp") or any(
            "deepspeed" in reading.software for reading in self.readings
        )
        mixed = self._get("training.precision") is not None
        if dtype in (None, "fp32") or self._get("training.lora_rank"):
            return
        if sharded and mixed:  # accelerate's FSDP and DeepSpeed keep fp32 weights beside these
            rule = "FSDP and DeepSpeed update fp32 weights under mixed precision"
            self.notes.append(f"{source}: {rule}: only loading is in {dtype}")
            return
        fields = {"precision": dtype, "master_weights": False}
        for name, value in {**fields, "gradient_dtype": dtype, "moment_dtype": dtype}.items():
            if self._get(f"training.{name}") is None:
                self._put(f"training.{name}", value, source)

    def _follow_loss(self, model: Architecture | None) -> None:
        """Pieces of liger-kernel's head and loss (ops/fused_linear_cross_entropy.py, 0.5).

        Tokens over vocabulary / width, made a power of two, are those of a piece.
        """
        micro, length = self._get("layout.micro_batch"), self._get("training.sequence_length")
        if not self._get("run.loss_by_width") or model is None or not micro or not length:
            return
        tokens = micro * length // (self._get("layout.cp") or 1)
        piece = -(-tokens // -(-model.vocabulary // model.hidden))
        pieces = -(-tokens // (1 << (piece - 1).bit_length())) if tokens else 1
        self._put("training.loss_chunks", max(pieces, 1), self._source("run.loss_by_width"))

    def _follow_batch(self, dp: int | None) -> None:
        """DeepSpeed's law: batch = micro-batch x accumulated x data-parallel ranks."""
        self._share_device_batch(dp)
        batch, micro = self._get("training.global_batch"), self._get("layout.micro_batch")
        times, local = self._get("run.accumulation"), self._get("run.local_batch")
        if dp is None or "training.global_batch" in self.given:
            return
        trainer = any(reading.kind in TRAINERS for reading in self.readings)
        if trainer and micro and batch is None and times is None:
            times, source = 1, f"{self._source('layout.micro_batch')}, accumulated once"
            self._put("run.accumulation", times, source)  # the Trainer's default
        if batch is None and micro and times:
            source = f"{micro} x {times} x dp {dp}, {self._source('run.accumulation')}"
            self._put("training.global_batch", micro * times * dp, source)
        elif batch is None and local:
            source = f"{local} x dp {dp}, {self._source('run.local_batch')}"
            self._put("training.global_batch", local * dp, source)
        elif batch and times and micro is None and batch % (times * dp) == 0:
            source = f"{batch} / ({times} x dp {dp}), {self._source('run.accumulation')}"
            self._put("layout.micro_batch", batch // (times * dp), source)
        elif batch and micro and times and batch != micro * times * dp:
            at = self._source("training.global_batch")
            self.problems.append(
                f"training.global_batch: {batch} ({at}) contradicts {micro} x {times} x dp {dp}"
                f" ({self._source('run.accumulation')});"
                " --set training.global_batch=N decides"
            )

    def _follow_samples(self) -> None:
        """Batches count sequences, of which a pair of answers is two; those of options do so."""
        count, sizes = (
            self._get("run.sequences_each"),
            {"layout.micro_batch", "training.global_batch"},
        )
        if count is None:
            return
        source = self._source("run.sequences_each")
        if self._get("run.no_reference"):
            self.fields.pop("distillation.compares", None)
        for name in sorted(sizes & self.fields.keys()) if not sizes & self.given.keys() else ():
            before = self.fields[name]
            self._put(name, before.value * count, f"{count} sequences x {before.source}")
        rule = "a sample is a pair of answers, two sequences of a batch"
        if "distillation.compares" in self.fields:
            rule += "; the pass of its reference is not in this step: foreshard distil prices both"
        self.notes.append(f"{source}: {rule}")

    def _share_device_batch(self, dp: int | None) -> None:
        """MaxText's law: a pass takes the batch of a device on every device, whoever shares it."""
        each, gpus = self._get("run.device_batch"), self._get("cluster.gpus")
        if dp is None or each is None or self._get("layout.micro_batch") is not None:
            return
        devices = gpus * self._programs()
        micro, source = each * devices / dp, self._source("run.device_batch")
        if micro % 1 or not 0 < micro <= LARGEST:
            self.problems.append(
                f"run.device_batch: {each:g} ({source}) x {devices} devices is no whole number of"
                f" sequences for each of dp {dp}"
            )
            return
        source = f"{each:g} x {devices} devices, {source}"
        self._put("layout.micro_batch", int(micro), f"{source} / dp {dp}")
        if self._get("training.global_batch") is None:
            batch = int(micro) * dp * (self._get("run.accumulation") or 1)
            self._put("training.global_batch", batch, source)

    def _follow_groups(self, dp: int | None) -> None:
        """Ranks that share states, from how many groups or how many members there are."""
        if dp is None or self._get("layout.sharding") == "ddp":
            return
        ranks = dp * (self._get("layout.cp") or 1)
        cp = self._get("layout.cp") or 1
        members = self._get("run.shard_degree")
        servers = self._get("run.shard_servers")
        if servers and (per_node := self._per_node()) and 0 < servers * per_node < ranks:
            self._put("layout.shard_group", servers * per_node, self._source("run.shard_servers"))
        for name in ("run.shard_degree", "run.shard_replicas", "run.shard_instances"):
            number = self._get(name)
            group = members * cp if number and members else ranks // number if number else 0
            if 0 < group < ranks:
                self._put("layout.shard_group", group, self._source(name))

    def result(self, names: Mapping[str, Any], overrides: list[str], paths: list[Path]) -> Imported:
        """The scenario, or what is missing for one."""
        document: dict[str, dict[str, Any]] = {}
        for origin in self.fields.values():
            section, _, name = origin.field.partition(".")
            if origin.field in CHECKPOINTS:
                saves = document.setdefault("run", {}).setdefault("checkpoints", {})
                saves[name.partition(".")[2]] = origin.value
            elif origin.field == "run.checkpoints" and isinstance(origin.value, Mapping):
                saves = document.setdefault("run", {}).get("checkpoints", {})
                document["run"]["checkpoints"] = {**origin.value, **saves}
            elif section not in ("run", "size") or origin.field in _RUN:
                document.setdefault(section, {})[name] = origin.value
        heads = document.get("model", {}).get("tasks")
        if names.get("model") is not None:
            document["model"] = {"name": str(names["model"])}
            if heads is not None:
                document["model"]["tasks"] = heads
        elif heads is not None and self.architecture is not None:
            self.architecture = with_tasks(heads, self.architecture, "--from")
        for key, value in _named(names).items():
            if key != "model":
                document.setdefault("cluster", {})[key] = value
        self._ask(document, overrides)
        self._choose_software(document)
        self._choose_adamw(document)
        scenario = self._scenario(document, names, overrides)
        every, steps = scenario.run.checkpoints.every_steps, scenario.workload.recipe.steps
        if EVERY_STEPS in self.fields and every and steps is not None and every > steps:
            rule = f"the run of {steps:,.0f} steps ends before {every:,}: as if it were not said"
            self.notes.append(f"{self._source(EVERY_STEPS)}: {rule}")
            del document["run"]["checkpoints"]["every_steps"], self.fields[EVERY_STEPS]
            scenario = self._scenario(document, names, overrides)
        scenario = _without_the_usual(scenario)
        origins = tuple(o for o in self.fields.values() if o.field.partition(".")[0] != "size")
        origins = tuple(
            o
            for o in origins
            if (o.field in CHECKPOINTS or o.field in _RUN or not o.field.startswith("run."))
            and o.field not in self.given
        )
        return Imported(
            paths=tuple(paths),
            readings=tuple(self.readings),
            scenario=scenario,
            origins=origins,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _scenario(
        self, document: Mapping[str, Any], names: Mapping[str, Any], overrides: list[str]
    ) -> Scenario:
        return make_scenario(
            document,
            where="--from",
            overrides=overrides,
            architecture=None if names.get("model") is not None else self.architecture,
        )

    def _batch_follows(self) -> bool:
        """Whether the batch is known as soon as the number of accelerators is."""
        trainer = any(reading.kind in TRAINERS for reading in self.readings)
        each = self._get("layout.micro_batch") and (self._get("run.accumulation") or trainer)
        return bool(each or self._get("run.local_batch") or self._get("run.device_batch"))

    def _ask(self, document: Mapping[str, Mapping[str, Any]], overrides: list[str]) -> None:
        """Name what no file and no option says, behind what is wrong with what options say."""
        missing = []
        for name, (what, how) in _ASKED.items():
            section, _, key = name.partition(".")
            table = document.get(section, {})
            set_there = name == "model" and "model.name" in self.given
            there = (
                key in table
                if key
                else bool(table.keys() - {"tasks"}) or self.architecture is not None
            )
            if name == "training.global_batch" and "gpus" not in document.get("cluster", {}):
                there = there or self._batch_follows()
            if name == "model" and (said := self.fields.get("run.model")) and not there:
                what = f"{said.value!r}, {said.source}, is no model of the zoo"
            if name == "model" and self.sizes_alone:
                how += f", or --set {_TOKENS}=N, the tokens of its vocabulary"
            if not there and not set_there and name not in self.given:
                missing.append(f"--from: {name}: not said by these files ({what}): {how}")
        if missing:
            raise InputError([*_wrong(overrides), *missing])

    def _choose_software(self, document: dict[str, dict[str, Any]]) -> None:
        """The profile that all files ask for together, of those that run on these machines.

        Of files that each name some, the one that all of them name; the order of files counts for
        nothing. What a file would have otherwise holds where no other names any.
        """
        table = document.setdefault("cluster", {})
        if table.get("software") is not None or "cluster.software" in self.given:
            return
        asking = sorted((r for r in self.readings if r.software), key=lambda r: -len(r.software))
        wanted = [r.software for r in asking]
        if not wanted:
            asking = [r for r in self.readings if r.otherwise]
            wanted = [r.otherwise for r in asking]
        gpus = table.get("gpus")
        if not wanted or not isinstance(table.get("name"), str) or not isinstance(gpus, int):
            return
        cluster = load_cluster(table["name"], gpus, where="--from")
        shared = [name for name in wanted[0] if all(name in names for names in wanted)]
        if not shared:
            said = " but ".join(f"{r.kind} ({r.path}) asks for {r.software[0]}" for r in asking)
            raise InputError(f"--from: {said}: --software NAME decides")
        name = first_running(shared, cluster.accelerator.platform)
        if name is not None:
            table["software"] = name
            kinds = " and ".join(sorted({r.kind for r in asking}))
            self._put("cluster.software", name, f"{kinds} (--software NAME chooses another)")

    def _choose_adamw(self, document: dict[str, dict[str, Any]]) -> None:
        """Kernels of AdamW, where the software steps by torch's; DeepSpeed brings its own."""
        kernels, source = self._get(_ADAMW), self._source(_ADAMW)
        software = document.get("cluster", {}).get("software")
        optimizer = self._get("training.optimizer") or "adamw"
        if kernels is None or "software.adamw" in self.given or optimizer != "adamw":
            return
        if isinstance(software, str) and stack_of(software) in _TORCH_STEPS:
            self._put("software.adamw", kernels, source)
            usual = [x for reading in self.readings for x in reading.usual if x.field == _ADAMW]
            if source in (f"{item.path}: {item.why}" for item in usual):
                self.notes.append(f"{source}: software.adamw = {kernels}")
            document.setdefault("software", {})["adamw"] = kernels


def _wrong(overrides: list[str]) -> list[str]:
    """What cannot be the value of a field that ``--set`` names, whatever the other fields are."""
    try:
        make_scenario({}, where="--set", overrides=overrides)
    except InputError as error:
        fields = [text.partition("=")[0].strip() for text in overrides]
        return [x for x in error.problems if any(x.startswith(f"--set: {f}: ") for f in fields)]
    return []


def _without_the_usual(scenario: Scenario) -> Scenario:
    """Drop what is also meant where it is not said: modules of recomputation, stages."""
    usual = [name for name in scenario.pinned if name in _USUAL and _USUAL[name](scenario)]
    if not usual:
        return scenario
    pinned = {name: value for name, value in scenario.pinned.items() if name not in usual}
    document = {**scenario.document, "layout": dict(pinned)}
    return replace(scenario, pinned=pinned, document=document)


def _names_usual_modules(scenario: Scenario) -> bool:
    """Whether selective recomputation names what the software names itself."""
    arch, modules = scenario.workload.architecture, scenario.software.kernels.selective_modules
    usual = {"moe_act" if word == "mlp_act" else word for word in modules}
    experts = {"moe", "moe_act", "shared_experts"} if not arch.is_moe else set()
    return set(scenario.pinned["recompute_modules"].split("+")) == usual - experts


def _deals_as_usual(scenario: Scenario) -> bool:
    """Whether uneven stages, which launch commands spell out, are those that are meant anyhow."""
    pp, vpp = scenario.pinned.get("pp", 1), scenario.pinned.get("vpp", 1)
    arch, dealt = scenario.workload.architecture, list(scenario.pinned["stages"])
    if len(set(dealt)) == 1 or len(dealt) != pp * vpp or sum(dealt) != arch.layers:
        return False
    return layers_by_stage({"pp": pp, "vpp": vpp}, arch) == dealt


_USUAL = {"recompute_modules": _names_usual_modules, "stages": _deals_as_usual}
