"""Arguments that Megatron-DeepSpeed alone has, in the words of Megatron-Core.

Names, defaults and which layers have experts as in megatron/arguments.py and
megatron/model/transformer.py (get_num_experts_per_layer, ParallelTransformerLayer) of
deepspeedai/Megatron-DeepSpeed@4efb479d: experts in every second layer, the best one of each token,
``--num-experts 1`` for none, tokens beyond an expert's capacity dropped, the rest filled up.
"""

from __future__ import annotations

import re
from typing import Any

from simulator.interop.dialects.settings import Setting, Settings, as_whole

_ITS_OWN = {
    *("deepspeed", "deepspeed_config", "zero_stage", "moe_expert_parallel_size", "topk"),
    *("moe_train_capacity_factor", "mlp_type", "create_moe_param_group", "moe_min_capacity"),
    "disable_moe_token_dropping",
}
_MOST_LAYERS = 10_000


def in_words_of_core(settings: Settings) -> None:
    """Put Megatron-Core's arguments where Megatron-DeepSpeed's stand."""
    if groups := settings.take("num_key_value_heads"):
        _put(settings, groups, num_query_groups=groups.value, group_query_attention=True)
    if _ITS_OWN.isdisjoint(settings.found):
        if interval := settings.take("expert_interval"):
            _put(settings, interval, moe_layer_freq=_pattern(settings, interval.value))
        return
    experts = settings.found.get("num_experts")
    counts = set(re.findall(r"\d{1,9}", "" if experts is None else str(experts.value)))
    if experts is None or len(counts) > 1:  # other numbers in other layers are not read
        return
    said = {key: settings.take(key) for key in ("expert_interval", "topk", "mlp_type")}
    factor, dropped = settings.take("moe_train_capacity_factor"), True
    if settings.flag("disable_moe_token_dropping"):
        dropped = False
    if counts == {"1"}:
        settings.take("num_experts", "moe_expert_parallel_size")
        del settings.found["num_experts"]
        return
    interval, best, kind = said.values()
    _put(
        settings,
        experts,
        moe_layer_freq=_pattern(settings, "2" if interval is None else interval.value),
        moe_router_topk=1 if best is None else best.value,
        moe_token_dispatcher_type="alltoall",
    )
    if dropped:
        factor_value = 1.0 if factor is None else factor.value
        _put(settings, experts, moe_expert_capacity_factor=factor_value)
        _put(settings, experts, moe_pad_expert_input_to_capacity=True)
    if not settings.flag("enable_expert_tensor_parallelism"):
        _put(settings, experts, expert_tensor_parallel_size=1)
    width = as_whole(settings.found["hidden_size"].value) if "hidden_size" in settings.found else 0
    if kind is not None and str(kind.value).strip("'\"") == "residual" and width:
        inner = settings.found.get("ffn_hidden_size")
        shared = 4 * width if inner is None else inner.value
        _put(settings, kind, moe_shared_expert_intermediate_size=shared)
        rule = "an MLP beside the experts of a layer is counted as a shared expert"
        settings.notes.append(f"{kind.place}: {rule}")


def _put(settings: Settings, place: Setting, **said: Any) -> None:
    settings.found |= {key: Setting(key, value, place.place) for key, value in said.items()}


def _pattern(settings: Settings, interval: Any) -> str:
    """Megatron-Core's pattern of layers with experts, the last of every so many.

    >>> from simulator.interop.dialects.settings import Place
    >>> layers = Setting("num_layers", "5", Place("run.sh", "--num-layers"))
    >>> _pattern(Settings.of("run.sh", [layers]), "2")
    '[0,1]*2+[0]*1'
    """
    every = as_whole(interval) or 1
    layers = settings.found.get("num_layers")
    count = (as_whole(layers.value) if layers is not None else None) or 0
    if not 0 < every <= count <= _MOST_LAYERS:
        return str(every)
    group = f"[{'0,' * (every - 1)}1]*{count // every}"
    return group + (f"+[0]*{count % every}" if count % every else "")
