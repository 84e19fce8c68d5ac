"""Counts parameters and forward FLOPs of transformers' own classes, one small model a family.

Run it where transformers and torch are installed; ``python tests/oracles/count_families.py >
tests/data/families.json`` writes the facts that ``tests/workload/test_rows.py`` holds the table of
families to. Models are built on the meta device, with the defaults of their class and six layers at
most; FLOPs are those of torch's counter for two sequences under eager attention, experts by token.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from typing import Any

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from simulator.workload.families import table

BATCH, LENGTH, LAYERS = 2, 48, 6
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
WHOLE = ("gemma3n_text", "gpt_neo", "mllama", "zamba", "zamba2")
"""Types whose layers are named one by one in their class."""

SIZES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_vl_text": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "qwen3_omni_moe_text": {"num_attention_heads": 32, "num_key_value_heads": 4},
    "reformer": {"is_decoder": True},
}
"""Sizes without which a class cannot be built."""


WHOLE_CLASSES = {
    "bart": "BartForConditionalGeneration",
    "bigbird_pegasus": "BigBirdPegasusForConditionalGeneration",
    "blenderbot": "BlenderbotForConditionalGeneration",
    "blenderbot-small": "BlenderbotSmallForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration",
    "glm4v": "Glm4vForConditionalGeneration",
    "glm4v_moe": "Glm4vMoeForConditionalGeneration",
    "hubert": "HubertForCTC",
    "internvl": "InternVLForConditionalGeneration",
    "kimi_k25": "Kimi_K25ForConditionalGeneration",
    "llama4": "Llama4ForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
    "marian": "MarianMTModel",
    "mbart": "MBartForConditionalGeneration",
    "mistral3": "Mistral3ForConditionalGeneration",
    "mvp": "MvpForConditionalGeneration",
    "paligemma": "PaliGemmaForConditionalGeneration",
    "parakeet_ctc": "ParakeetForCTC",
    "pegasus": "PegasusForConditionalGeneration",
    "plbart": "PLBartForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen2_audio": "Qwen2AudioForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "voxtral": "VoxtralForConditionalGeneration",
    "wav2vec2": "Wav2Vec2ForCTC",
    "whisper": "WhisperForConditionalGeneration",
}
"""Models of towers or of an encoder and a decoder, by the class that holds all of it."""

TEXT_CLASSES = {
    "cosmos3_edge_text": "Cosmos3EdgeTextModel",
    "eurobert": "EuroBertForMaskedLM",
    "glm4v_moe_text": "Glm4vMoeTextModel",
    "glm_ocr_text": "GlmOcrTextModel",
    "granite_docling_text": "GraniteDoclingTextModel",
    "hunyuan_vl_text": "HunYuanVLTextModel",
    "hy_v4_vl_text": "HYV4VLTextModel",
    "mistral4": "Mistral4ForCausalLM",
    "qwen2_5_vl_text": "Qwen2_5_VLTextModel",
    "qwen2_vl_text": "Qwen2VLTextModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
    "qwen3_vl_moe_text": "Qwen3VLMoeTextModel",
    "qwen3_vl_text": "Qwen3VLTextModel",
}
"""Models of text that are parts of others, or encoders, by their own class."""


def config_of(family: str, changes: dict[str, Any]) -> Any:
    """Make transformers' config of a type with some of its fields changed."""
    return CONFIG_MAPPING[family](**changes)


def built(family: str, config: Any) -> Any:
    """Build the class of a type on the meta device."""
    with torch.device("meta"):
        return getattr(transformers, (config.architectures or [CLASSES.get(family)])[0])(config)


def parameters(model: Any) -> int:
    """Count all parameters."""
    return sum(tensor.numel() for tensor in model.parameters())


def shallow(family: str) -> dict[str, Any]:
    """Changes that make a model of a type small enough to build quickly."""
    default = CONFIG_MAPPING[family]
    fields = {name: getattr(default, name, None) for name in DEPTHS}
    deep = {name: LAYERS for name, value in fields.items() if isinstance(value, int)}
    deep = {name: min(value, fields[name]) for name, value in deep.items()}
    return {**({} if family in WHOLE else deep), **SIZES.get(family, {})}


def forward_flop(family: str, changes: dict[str, Any]) -> int | None:
    """FLOPs of one forward pass, or nothing where the class cannot run on the meta device."""
    config = config_of(family, changes)
    for part in (config, getattr(config, "text_config", None)):
        if part is not None and not isinstance(part, dict):
            part._attn_implementation, part._experts_implementation = "eager", "batched_mm"
    model = built(family, config).eval()
    with torch.device("meta"):
        ids, whole = (
            torch.zeros(BATCH, LENGTH, dtype=torch.long),
            torch.zeros(BATCH, 1, LENGTH, LENGTH),
        )
    kinds = ("full", "sliding", "chunked", "indexed", "linear")
    by_kind = {f"{kind}_attention": whole for kind in kinds} | {"conv": whole}
    for mask in (whole, by_kind, None):
        try:
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model(input_ids=ids, use_cache=False, attention_mask=mask)
            return int(counter.get_total_flops())
        except Exception:  # whatever a class of transformers does with a mask that it does not take
            continue
    return None


def nested(config: Any, known: set[str]) -> dict[str, Any]:
    """Write a config of parts as a document, of each part only fields that some row reads."""
    document = {"model_type": config.model_type}
    for name, value in config.to_dict().items():
        if isinstance(value, dict) and name.endswith("_config"):
            document[name] = {key: value[key] for key in value if key in {*known, "model_type"}}
        elif name in known:
            document[name] = value
    return document


def main() -> None:
    """Print the facts of every type that has a row and can be built."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    known = {
        name
        for family in table.names()
        for word in table.row(family).words
        for name in table.row(family).fields(word)
        if name not in ("id2label", "architectures")
    }
    cases = []
    for family in sorted(CLASSES):
        if not table.has(family):
            continue
        changes = shallow(family)
        try:
            config = config_of(family, changes)
            count = parameters(built(family, config))
        except Exception as error:
            print(f"{family}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        parts = "parts" in table.row(family).words
        document = nested(config, known) if parts else {"model_type": family, **changes}
        flop = None if parts else forward_flop(family, changes)
        cases.append({"config": document, "parameters": count, "forward_flop": flop})
        print(family, count, flop, file=sys.stderr, flush=True)
    for family, name in {**WHOLE_CLASSES, **TEXT_CLASSES}.items():
        config = config_of(family, {"architectures": [name], **SIZES.get(family, {})})
        document = {**nested(config, known), "architectures": [name]}
        count = parameters(built(family, config))
        cases.append({"config": document, "parameters": count, "forward_flop": None})
        print(name, count, file=sys.stderr, flush=True)
    made = f"transformers {transformers.__version__}, torch {torch.__version__}"
    lines = ",\n".join(json.dumps(case) for case in cases)
    print(
        f'{{"made_with": "{made}", "batch": {BATCH}, "length": {LENGTH}, "cases": [\n{lines}\n]}}'
    )


if __name__ == "__main__":
    main()
