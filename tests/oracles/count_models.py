"""Counts parameters and forward FLOPs of small models of every family with transformers.

Run it where transformers and torch are installed; it prints the JSON that is kept as
``tests/data/family_counts.json``. Models are built on the meta device, so nothing is computed.
FLOPs are those of torch's counter for two sequences under eager attention, all scores counted.
"""

import json
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode

BATCH, LENGTH, DECODER_LENGTH = 2, 48, 32

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 48, "head_dim": 16,
    "pad_token_id": 0,
}  # fmt: skip
FALCON = {
    key: SIZES[key]
    for key in (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    )
}
BERT = {
    key: value for key, value in SIZES.items() if key not in ("num_key_value_heads", "head_dim")
}
OPT = {**FALCON, "ffn_dim": 96, "word_embed_proj_dim": 64}
MPT = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100, "max_seq_len": 48}
T5 = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "vocab_size": 100,
}
SWITCH = {**T5, "num_layers": 6, "num_decoder_layers": 4, "num_experts": 4}
IMAGE = {"image_size": 32, "patch_size": 8, "num_labels": 7}
VIT = {
    key: BERT[key]
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
} | IMAGE
SWIN = {
    "embed_dim": 16,
    "depths": [2, 3],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": 7,
    "image_size": 32,
    "patch_size": 4,
}
DEBERTA = {
    **BERT,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
}
LLAMA4 = {**SIZES, "num_local_experts": 4, "intermediate_size_mlp": 80}
MOE = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}

HYBRID = {
    **{key: value for key, value in SIZES.items() if key != "num_hidden_layers"},
    "hybrid_override_pattern": "M-M*-",
    "mamba_num_heads": 8,
    "mamba_head_dim": 4,
    "ssm_state_size": 8,
    "n_groups": 2,
    "chunk_size": 16,
}

DELTA = {
    **SIZES,
    "full_attention_interval": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}

CASES = [
    ("phi3", "Phi3ForCausalLM", SIZES),
    ("phi3", "Phi3ForCausalLM", {**SIZES, "sliding_window": 16, "tie_word_embeddings": True}),
    ("gemma2", "Gemma2ForCausalLM", SIZES),
    ("gemma2", "Gemma2ForCausalLM", {**SIZES, "attention_bias": True, "sliding_window": 16}),
    ("gpt_oss", "GptOssForCausalLM", MOE),
    ("gpt_oss", "GptOssForCausalLM", {**MOE, "attention_bias": False, "num_local_experts": 8}),
    ("llama4_text", "Llama4ForCausalLM", LLAMA4),
    ("llama4_text", "Llama4ForCausalLM",
     {**LLAMA4, "interleave_moe_layer_step": 2, "num_experts_per_tok": 2,
      "no_rope_layers": [1, 0, 1], "attention_bias": True}),
    ("llama4_text", "Llama4ForCausalLM",
     {**LLAMA4, "moe_layers": [], "tie_word_embeddings": True, "attention_chunk_size": 16}),
    ("nemotron", "NemotronForCausalLM", SIZES),
    ("nemotron", "NemotronForCausalLM", {**SIZES, "mlp_bias": True, "attention_bias": True}),
    ("nemotron_h", "NemotronHForCausalLM", HYBRID),
    ("nemotron_h", "NemotronHForCausalLM",
     {**HYBRID, "use_bias": True, "use_conv_bias": False, "mlp_bias": True, "n_groups": 4,
      "hybrid_override_pattern": "MM*-*"}),
    ("nemotron_h", "NemotronHForCausalLM",
     {**HYBRID, "mamba_num_heads": 6, "conv_kernel": 3, "attention_bias": True,
      "tie_word_embeddings": True}),
    ("qwen3_next", "Qwen3NextForCausalLM", DELTA),
    ("qwen3_next", "Qwen3NextForCausalLM",
     {**DELTA, "attention_bias": True, "full_attention_interval": 2, "num_hidden_layers": 4,
      "mlp_only_layers": [1], "linear_num_value_heads": 2, "linear_conv_kernel_dim": 3,
      "tie_word_embeddings": True}),
    ("falcon", "FalconForCausalLM", FALCON),
    ("falcon", "FalconForCausalLM", {**FALCON, "multi_query": False, "bias": True, "alibi": True}),
    ("falcon", "FalconForCausalLM", {**FALCON, "parallel_attn": False, "ffn_hidden_size": 80}),
    ("falcon", "FalconForCausalLM",
     {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", "FalconForCausalLM",
     {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
      "tie_word_embeddings": False}),
    ("opt", "OPTForCausalLM", OPT),
    ("opt", "OPTForCausalLM", {**OPT, "do_layer_norm_before": False, "enable_bias": False}),
    ("opt", "OPTForCausalLM",
     {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    ("opt", "OPTForCausalLM", {**OPT, "word_embed_proj_dim": 16}),
    ("mpt", "MptForCausalLM", MPT),
    ("mpt", "MptForCausalLM", {**MPT, "expansion_ratio": 2, "attn_config": {"alibi": True}}),
    ("bert", "BertModel", BERT),
    ("bert", "BertModel", {**BERT, "type_vocab_size": 5}),
    ("bert", "BertForMaskedLM", BERT),
    ("bert", "BertForPreTraining", BERT),
    ("deberta-v2", "DebertaV2Model", DEBERTA),
    ("deberta-v2", "DebertaV2Model", {**DEBERTA, "share_att_key": True, "type_vocab_size": 2}),
    ("deberta-v2", "DebertaV2Model", {**BERT, "position_biased_input": True}),
    ("deberta-v2", "DebertaV2Model",
     {**DEBERTA, "position_buckets": -1, "norm_rel_ebd": "none", "pos_att_type": "c2p|p2c"}),
    ("deberta-v2", "DebertaV2ForMaskedLM", {**DEBERTA, "position_biased_input": False}),
    ("deberta-v2", "DebertaV2Model", {**DEBERTA, "conv_kernel_size": 3, "conv_act": "gelu"}),
    ("deberta-v2", "DebertaV2ForMaskedLM",
     {**DEBERTA, "conv_kernel_size": 5, "conv_groups": 4, "position_biased_input": False}),
    ("vit", "ViTForImageClassification", VIT),
    ("vit", "ViTForImageClassification", {**VIT, "qkv_bias": False, "patch_size": 4}),
    ("swin", "SwinForImageClassification", SWIN),
    ("swin", "SwinForImageClassification",
     {**SWIN, "depths": [1, 1], "use_absolute_embeddings": True, "mlp_ratio": 2.5,
      "qkv_bias": False}),
    ("t5", "T5ForConditionalGeneration", T5),
    ("t5", "T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}),
    ("switch_transformers", "SwitchTransformersForConditionalGeneration", SWITCH),
    ("switch_transformers", "SwitchTransformersForConditionalGeneration",
     {**SWITCH, "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 0}),
    ("switch_transformers", "SwitchTransformersForConditionalGeneration",
     {**SWITCH, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 1}),
]  # fmt: skip

ROUTED = ("gpt_oss", "switch_transformers", "llama4_text", "nemotron_h", "qwen3_next")
"""Which expert gets a token depends on its data: no FLOPs on the meta device. transformers scans a
state space without GEMMs, which torch counts."""


def inputs(family: str, config: object) -> dict[str, torch.Tensor]:
    """Inputs of two sequences or images."""
    if family in ("vit", "swin"):
        return {"pixel_values": torch.empty(BATCH, 3, config.image_size, config.image_size)}
    words = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    if family == "bert":
        return {"input_ids": words}
    if family != "t5":
        return {"input_ids": words, "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)}
    return {"input_ids": words, "decoder_input_ids": words[:, :DECODER_LENGTH]}


def count(family: str, name: str, changes: dict[str, object]) -> dict[str, object]:
    """One line of the file."""
    import transformers  # no dependency of the tests

    config = transformers.AutoConfig.for_model(family, **changes)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
        parameters = sum(p.numel() for p in model.parameters())
        flop = None
        if family not in ROUTED or changes.get("moe_layers") == []:
            with FlopCounterMode(display=False) as counter:
                model(**inputs(family, config))
            flop = counter.get_total_flops()
    document = {"model_type": family, "architectures": [name], **changes}
    return {"config": document, "parameters": parameters, "forward_flop": flop}


def main() -> None:
    """Print every case."""
    import transformers

    lines = []
    for case in CASES:
        try:
            lines.append(count(*case))
        except Exception as error:
            print(case[0], case[1], repr(error)[:200], file=sys.stderr)
    made = {"transformers": transformers.__version__, "torch": torch.__version__}
    sizes = {"batch": BATCH, "length": LENGTH, "decoder_length": DECODER_LENGTH}
    rows = ",\n  ".join(json.dumps(line) for line in lines)
    head = f'"made_with": {json.dumps(made)}, "sizes": {json.dumps(sizes)}'
    print(f'{{{head}, "cases": [\n  {rows}\n]}}')


if __name__ == "__main__":
    main()
