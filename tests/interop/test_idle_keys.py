"""Keys that are said to bear on nothing: whole names, of the trainers' own sources, with a reason.

``trainer_keys/*.csv`` have names and defaults of argument parsers and configuration classes, each
with its source and date. Every name there is read, idle for a reason, or listed as unknown; one
that speaks of what takes time or memory is idle only with its trainer's default, or where a test
here shows that it bears on nothing.
"""

import csv
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator.files import read_toml
from simulator.interop.dialects import settings as settings_module
from simulator.interop.dialects.deepspeed import read_deepspeed
from simulator.interop.dialects.gpt_neox import read_gpt_neox
from simulator.interop.dialects.maxtext import read_maxtext
from simulator.interop.dialects.megatron import read_megatron
from simulator.interop.dialects.settings import Place, Reading, Setting, Settings, idle_in
from simulator.interop.dialects.torchtitan import read_torchtitan
from simulator.interop.dialects.trainer import read_accelerate, read_trainer
from simulator.software.profile import load_software
from simulator.workload import presets

KEYS = Path(__file__).parent / "trainer_keys"
TABLE = read_toml(settings_module._TABLE)
READERS: dict[str, Callable[[Settings], Reading]] = {
    "megatron": lambda found: read_megatron(found, flags=True, kind="command"),
    "torchtitan": read_torchtitan,
    "trainer": read_trainer,
    "accelerate": read_accelerate,
    "deepspeed": read_deepspeed,
    "maxtext": lambda found: read_maxtext(found, kind="command", whole=False),
    "gpt_neox": read_gpt_neox,
}
SPEAKS = re.compile(
    r"dtype|shard|offload|recompute|activation_checkpoint|gradient_checkpoint|checkpointing|bucket"
    r"|attention|attn|window|fuse|fusion|quant|lora|freeze|pack|overlap|precision|fp8|fp4|bf16|fp16"
)
"""What a name speaks of that takes time or memory."""
OTHER_SOURCES = {
    "megatron": "model model_name recipe model_recipe_name name work_group user_name workspace"
    " config framework exp_name exp_dir exp_manager model_family_name container container_image"
    " hf_token log_dir time_limit account partition checkpoint_dir one_logger_async"
    " is_instruction_dataset prompt_type tokenizer_name_or_path",
    "trainer": "token",
}
"""Words of launchers and recipes around the trainers: NeMo, Primus, MindSpeed-LLM."""

SHOWN = {
    "evaluation alone": "bf16_full_eval fp16_full_eval eval_packing eval_use_gather_object",
    "counters of the loss scale, one number each": "loss_scale_window fp16.loss_scale_window"
    " fp16.hysteresis fp16.initial_scale_power fp16.loss_scale fp16.min_loss_scale"
    " fp16.consecutive_hysteresis",
    "maxima": "fp8_margin fp8_interval fp8_amax_history_len fp8_amax_compute_algo",
    "scores": "attention_softmax_in_fp32 masked_softmax_fusion no_masked_softmax_fusion"
    " log_max_attention_logit",
    "scale": "lora_alpha lora_module_name only_optimize_lora",
    "host": "zero_optimization.offload_param.nvme_path"
    " zero_optimization.offload_optimizer.nvme_path"
    " zero_optimization.offload_param.pin_memory zero_optimization.offload_optimizer.pin_memory"
    " zero_optimization.offload_optimizer.buffer_count zero_optimization.offload_param.max_in_cpu"
    " zero_optimization.offload_optimizer.pipeline_read aio.overlap_events"
    " zero_optimization.offload_optimizer.pipeline_write"
    " deepspeed_config.offload_optimizer_nvme_path deepspeed_config.offload_param_nvme_path"
    " grain_per_worker_buffer_size grain_per_worker_buffer_size_eval grain_prefetch_buffer_size"
    " grain_prefetch_buffer_size_eval grain_shuffle_buffer_size",
    "saving and loading": "ckpt_load_validate_sharding_integrity logits_save_dtype"
    " checkpoint.export_dtype checkpoint.initial_load_in_hf_quantized async_checkpointing"
    " enable_checkpointing colocated_python_checkpointing checkpoint_is_quantized"
    " save_quantized_params_path hf_lora_adapter_path lora_input_adapters_path"
    " zero_optimization.stage3_gather_16bit_weights_on_model_save"
    " zero_optimization.stage3_gather_fp16_weights_on_model_save",
    "reports": "flops_profiler.recompute_fwd_factor throughput_window_size"
    " gradient_noise_scale_cpu_offload",
    "what GPT-NeoX fills in from zero_optimization": "zero_reduce_bucket_size"
    " zero_allgather_bucket_size",
    "layers that it refuses": "gmlp_attn_dim rpe_num_buckets",
    "generation, factors of muP, building kernels": "precompute_model_name recompute mup_attn_temp"
    " fused_kernels_build_path",
}
"""Names that speak of it and bear on nothing, by what shows it (tests below)."""
BY_NAME = {key for words in SHOWN.values() for key in words.split()}


@cache
def sources(dialect: str) -> dict[str, str]:
    text = (KEYS / f"{dialect}.csv").read_text().splitlines()
    assert text[0].startswith("# ")
    assert any("Read 2026-" in line for line in text if line.startswith("#"))
    rows = csv.DictReader(line for line in text if not line.startswith("#"))
    return {row["key"]: row["default"] for row in rows}


def idle_names(dialect: str) -> set[str]:
    return {word for words in TABLE[dialect].values() for word in words.split()}


def read_alone(dialect: str, key: str, value: Any) -> tuple[Settings, Reading]:
    found = Settings.of("f", [Setting(key, value, Place("f", key))])
    return found, READERS[dialect](found)


def test_no_pattern_stands_for_keys() -> None:
    for dialect, reasons in TABLE.items():
        if dialect == "at":
            continue
        for reason, words in reasons.items():
            assert reason
            assert all(re.fullmatch(r"[\w.]+", word) for word in words.split()), (dialect, reason)


@pytest.mark.parametrize("dialect", READERS)
def test_every_key_of_a_trainer_is_read_idle_or_unknown(dialect: str) -> None:
    """None vanishes: with a value that nobody has, it is taken, idle by its name, or unknown."""
    names = idle_names(dialect)
    for key in sources(dialect):
        found, reading = read_alone(dialect, key, "7")
        listed = {place.key for place in (*reading.idle, *reading.unknown)}
        assert key in found.taken or key in listed, key
        if key not in found.taken and key not in names:
            at = settings_module._plain(TABLE["at"][dialect].get(key, ""))
            assert at == "7" or key in {place.key for place in reading.unknown}, key


@pytest.mark.parametrize("dialect", READERS)
def test_idle_keys_are_the_trainers_own(dialect: str) -> None:
    known = {*sources(dialect), *OTHER_SOURCES.get(dialect, "").split()}
    assert idle_names(dialect) <= known, idle_names(dialect) - known
    assert set(TABLE["at"][dialect]) <= set(sources(dialect))


@pytest.mark.parametrize("dialect", READERS)
def test_a_key_that_speaks_of_time_or_memory_is_idle_only_where_shown(dialect: str) -> None:
    loud = {key for key in idle_names(dialect) if SPEAKS.search(key)}
    assert loud <= BY_NAME, loud - BY_NAME


@pytest.mark.parametrize("dialect", READERS)
def test_values_that_say_nothing_are_the_trainers_defaults(dialect: str) -> None:
    for key, value in TABLE["at"][dialect].items():
        default = sources(dialect)[key].strip("\"'")
        said = settings_module._plain(value)
        assert said in (settings_module._plain(default), settings_module._plain(_number(default)))
        idle = idle_in(dialect)
        assert idle.usual(Setting(key, value, Place("f", key))), key
        assert not idle.usual(Setting(key, f"not {value}", Place("f", key))), key
        assert not idle(key)


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def test_maxima_of_eight_bit_scales_take_no_memory() -> None:
    """A history of 1,024 fp32 maxima for input, weight and gradient of every linear of a block."""
    arch = presets.load("llama-3-8b")
    history = arch.layers * 7 * 3 * 1024 * 4
    states = load_software("megatron-core").states
    assert history < 1e-3 * arch.parameters * float(states.gradient)


def test_no_scores_are_kept_whose_type_or_mask_would_count() -> None:
    for name in (
        "megatron-core",
        "megatron-core-defaults",
        "megatron-bridge",
        "primus",
        "mindspeed",
    ):
        assert load_software(name).kernels.attention == "flash", name


def test_the_scale_of_adapters_is_a_factor() -> None:
    """torch: what a low-rank adapter keeps for its backward pass is the same with any alpha."""
    torch = pytest.importorskip("torch")
    kept = []
    for alpha in (8.0, 64.0):
        x = torch.randn(4, 32, requires_grad=True)
        down, up = torch.nn.Linear(32, 4, bias=False), torch.nn.Linear(4, 16, bias=False)
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, s=saved: (s.append(t.numel() * t.element_size()), t)[1], lambda t: t
        ):
            (alpha / 4 * up(down(x))).sum().backward()
        kept.append(sorted(saved))
    assert kept[0] == kept[1]


def test_shown_names_say_where_they_act() -> None:
    places = {
        "evaluation alone": "eval",
        "counters of the loss scale, one number each": "fp16|loss",
        "host": "offload_(?:param|optimizer)|grain|aio",
        "saving and loading": "save|load|checkpoint|adapter",
        "reports": "flops|throughput|noise_scale",
    }
    for reason, pattern in places.items():
        assert all(re.search(pattern, key) for key in SHOWN[reason].split()), reason
