"""The torchrun line that every launch command starts with, and the plain data-parallel command.

Variables that tell a script of one's own its layout are written and read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from simulator.hardware.cluster import Cluster
from simulator.interop.dialects.settings import Reading, Settings, as_whole
from simulator.quoting import comment_line, shell_word
from simulator.scenario import Scenario
from simulator.workload.recipe import Recipe

# --- written -------------------------------------------------------------------------------------

SAMPLE_STEPS = 50
"""Steps of the command where the scenario does not say how many tokens the run sees."""

_WIDTH = 96


def torchrun(cluster: Cluster) -> str:
    """Start one process per accelerator; on several servers the head node is yours to name."""
    accelerator = min(cluster.node.accelerators, cluster.gpus)
    if cluster.nodes == 1:
        return f"torchrun --standalone --nproc_per_node {accelerator}"
    return (
        f"torchrun --nnodes {cluster.nodes} --nproc_per_node {accelerator}"
        ' --rdzv_id 101 --rdzv_backend c10d --rdzv_endpoint "$HEAD_NODE:29500"'
    )


def steps(scenario: Scenario) -> int:
    """Optimizer steps of the run, rounded up."""
    count = scenario.workload.recipe.steps
    return SAMPLE_STEPS if count is None else int(-(-count // 1))


def layout_notes(row: Mapping[str, Any], unsaid: Mapping[str, str]) -> list[str]:
    """Comments that name the fields of a layout which a framework has no words for.

    `unsaid` is why, by field; fields of one reason share a line.

    >>> layout_notes({"sharding": "ddp", "cp": 2}, {"sharding": "its ranks share states."})
    ['# layout.sharding = ddp: its ranks share states.']
    """
    said = {reason: list[str]() for reason in unsaid.values()}
    for name, reason in unsaid.items():
        said[reason].append(f"layout.{name} = {'usual' if row[name] == '' else row[name]}")
    return [comment_line(f"{', '.join(named)}: {reason}") for reason, named in said.items()]


def unsaid_stashes(recipe: Recipe, flags: Sequence[str] = ()) -> list[str]:
    """A note on compressed stashes that `flags` do not ask for."""
    if recipe.stash_bytes is None:
        return []
    given = [f.name for f in fields(recipe.stash_bytes) if getattr(recipe.stash_bytes, f.name)]
    missing = [name for name in given if not (flags and name == "activation_input")]
    if not missing:
        return []
    return [
        f"No option compresses these stashes of the plan, they are yours: {', '.join(missing)}."
    ]


def wrapped(start: str, groups: list[list[str]]) -> str:
    """One command over several lines: a line or more for each group of flags."""
    lines = [start]
    for group in groups:
        line = ""
        for flag in group:
            if line and len(line) + len(flag) + 1 > _WIDTH:
                lines.append(f"    {line}")
                line = flag
            else:
                line = f"{line} {flag}".strip()
        if line:
            lines.append(f"    {line}")
    return " \\\n".join(lines)


def plain_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Plain data parallelism: torchrun, and what the training script has to be told."""
    notes = "".join(f"{comment_line(note)}\n" for note in unsaid_stashes(scenario.workload.recipe))
    return (
        "# train.py is your script: DistributedDataParallel around the model, told by these.\n"
        f"{notes}"
        f"export {_told(row, scenario)}\n{torchrun(scenario.cluster)} train.py"
    )


def script_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Software without a launcher: what the training script has to be told on every host."""
    cluster, software = scenario.cluster, scenario.software
    hosts = f"each of the {cluster.nodes:,} hosts" if cluster.nodes > 1 else "the host"
    start = f"{software.name} has no launcher: start train.py, your script, once on {hosts}"
    return (
        f"{comment_line(start)}\n"
        f"# ({cluster.gpus:,} devices; data-parallel ranks share states as {row['sharding']}).\n"
        f"export {_told(row, scenario)}\npython train.py"
    )


PLAIN = {
    **dict.fromkeys(("tp", "pp", "vpp", "cp", "cp_a2a", "ep", "etp"), 1),
    **dict.fromkeys(("recompute_layers", "offload_layers"), 0),
    **dict.fromkeys(("optimizer_offload", "parameter_offload"), "none"),
    "cp_kind": "ring",
    "dispatcher": "alltoall",
    "reshard_after_forward": True,
    "sequence_parallel": False,
    "sharding": "ddp",
    "recompute_modules": "",
    "rank_order": "tp-cp-dp-pp",
    "schedule": "1f1b",
    "stages": [],
}
"""Fields of a layout that a script is told under their own names, where they are not these."""

_ALSO_WITH = {
    **{"sequence_parallel": "tp", "cp_kind": "cp", "dispatcher": "ep"},
    **{"rank_order": "pp", "schedule": "pp"},
}
"""Fields that are told with a degree above 1, as software has defaults of its own for them."""


def _told(row: dict[str, Any], scenario: Scenario) -> str:
    """What a script reads from its environment."""
    recipe = scenario.workload.recipe
    values = {
        "MICRO_BATCH": row["micro_batch"],
        "GRADIENT_ACCUMULATION": row["global_batch"] // (row["dp"] * row["micro_batch"]),
        "SEQUENCE_LENGTH": recipe.sequence_length,
        "PRECISION": recipe.precision,
        "RECOMPUTE": row["recompute"],
        "STEPS": steps(scenario),
    }
    if recipe.lora_rank:  # the model comes with its weights, which stay as they are
        targets = ",".join(recipe.lora_targets)
        values |= {"CHECKPOINT": "yours", "LORA_RANK": recipe.lora_rank, "LORA_TARGETS": targets}
    for name, usual in PLAIN.items():
        asked = name == "sharding" or row.get(_ALSO_WITH.get(name, ""), 1) > 1
        if row[name] != usual or asked:
            values[name.upper()] = ",".join(map(str, row[name])) if name == "stages" else row[name]
    if row["sharding"] != "ddp" and row["shard_group"] != row["dp"] * row["cp"]:
        values["SHARD_GROUP"] = row["shard_group"]
    return " ".join(f"{name}={shell_word(value)}" for name, value in values.items())


# --- read ----------------------------------------------------------------------------------------

PLAIN_VARIABLES = {"MICRO_BATCH", "GRADIENT_ACCUMULATION", "SEQUENCE_LENGTH"}
_PRECISIONS = {name: name for name in ("fp32", "tf32", "fp16", "bf16", "fp8")}


def read_variables(settings: Settings) -> Reading:
    """State what the variables say."""
    settings.whole("layout.micro_batch", "MICRO_BATCH")
    settings.whole("run.accumulation", "GRADIENT_ACCUMULATION")
    settings.whole("training.sequence_length", "SEQUENCE_LENGTH")
    settings.whole("run.steps", "STEPS")
    settings.whole("training.lora_rank", "LORA_RANK")
    settings.word("training.precision", _PRECISIONS, "PRECISION")
    modes = {word: word for word in ("none", "selective", "full")}
    settings.word("layout.recompute", modes, "RECOMPUTE")
    for name, usual in {**PLAIN, "shard_group": 0}.items():
        setting = settings.take(name.upper())
        if setting is not None:
            settings.say(f"layout.{name}", _value(str(setting.value), usual), setting)
    targets = settings.take("LORA_TARGETS")
    if targets is not None:
        settings.say("training.lora_targets", str(targets.value).split(","), targets)
    return settings.reading("variables of a training script", str.isupper, software=("plain-ddp",))


def _value(text: str, usual: Any) -> Any:
    """A field's value of its text; what is none is left to the scenario's own check."""
    if isinstance(usual, list):
        return [as_whole(count) for count in text.split(",")]
    words = {"true": True, "false": False} if isinstance(usual, bool) else {}
    number = None if isinstance(usual, str) else as_whole(text)
    return words.get(text.lower(), text if number is None else number)
