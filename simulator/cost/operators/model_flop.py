"""Model FLOPs of a step: what the published convention counts, whatever a layout executes."""

from __future__ import annotations

from simulator.workload.architecture import MLP, Architecture, Attention, Block
from simulator.workload.modules import filter_parameters
from simulator.workload.recipe import Workload

__all__ = ["model_flop_per_step", "seen_keys", "step_flop"]


def model_flop_per_step(
    arch: Architecture,
    *,
    tokens: float,
    sequence_length: int,
    decoder_length: int = 0,
    adapters: bool = False,
    head_trained: bool = True,
) -> float:
    """Model FLOPs of one optimizer step, the convention behind MFU.

    Three times the forward pass (Chowdhery et al. 2022, appendix B): two FLOPs per token and
    weight of every matrix multiplication, output head included and embedding look-up not;
    attention causal, i.e. half of the full score matrix, in full where it is bidirectional.
    Recomputation does not count, nor do tensors that no token passes (DeBERTa's projections of its
    relative positions, made once per micro-batch).

    Parameters
    ----------
    arch : Architecture
        The model.
    tokens : float
        Tokens of the step; of an encoder-decoder those that the encoder reads.
    sequence_length, decoder_length : int
        Tokens per sequence; the decoder's of an encoder-decoder, 0 for as many as the encoder's.
    adapters : bool
        Only adapters are trained: frozen weights have no gradient; the adapters' own, a thousandth
        of the model, are left out. Frozen blocks, which have no backward pass, count once.
    head_trained : bool
        Whether the output table is trained.
    """
    behind = decoder_length or sequence_length
    per_token = _ends(arch, sequence_length, behind)
    for index in arch.layer_kinds:
        per_token += _layer(arch.blocks[index], arch, sequence_length, behind)
    return tokens * (
        3.0 * per_token - _spared(arch, sequence_length, behind, adapters, head_trained)
    )


def step_flop(workload: Workload) -> float:
    """Model FLOPs of one step of a workload: its batch, sequence lengths and frozen parts."""
    arch, recipe = workload.architecture, workload.recipe
    tokens = float(recipe.tokens_per_step)
    return sum(
        model_flop_per_step(
            arch,
            tokens=share * tokens,
            sequence_length=length,
            decoder_length=recipe.decoder_length,
            adapters=recipe.lora_rank > 0,
            head_trained=recipe.trains_head(tied=arch.tied_embeddings),
        )
        for length, share in recipe.sequences
    )


def _spared(
    arch: Architecture, length: int, behind: int, adapters: bool, head_trained: bool
) -> float:
    """FLOPs per token that are not done because weights are frozen."""
    spared = 0.0 if head_trained else 2.0 * arch.output_rows * arch.table_columns
    for index in arch.layer_kinds:
        kind = arch.blocks[index]
        if kind.frozen:
            spared += 2.0 * _layer(kind, arch, length, behind)
        elif adapters:
            spared += 2.0 * (kind.active_parameters(arch.hidden) - _vectors(kind, arch.hidden))
    return spared


def seen_keys(att: Attention, length: float) -> float:
    """Keys that a query meets on average in a sequence: half of them under a causal mask."""
    span = min(att.window or length, length)
    if att.chunked:
        whole, rest = length // span, length % span
        return (whole * span * span + rest * rest) / (2.0 * length)
    return span - span * span / (2.0 * length) if att.causal else float(span)


def _ends(arch: Architecture, length: int, behind: int) -> float:
    """Forward FLOPs of embedding and head, per token of the input."""
    if arch.traced is not None:
        return arch.traced.flop_per_sample / length
    last = arch.last_width or arch.hidden
    output = 2.0 * arch.output_rows * arch.table_columns + 2.0 * arch.head_transform * last * last
    ends = 1 + (arch.output_rows > 0)  # projections in front of the blocks and behind them
    output += 2.0 * ends * arch.table_width * arch.hidden
    once = 2.0 * (arch.pooler * last * last + arch.classes * last)
    if arch.tasks is not None:
        each = arch.tasks.forward_flop(last)
        output, once = (output + each, once) if arch.tasks.per_token else (output, once + each)
    patches = 2.0 * arch.patch_values * arch.hidden * (length - arch.extra_embeddings)
    share = behind / length if arch.is_encoder_decoder else 1.0
    return output * share + (once + patches) / length


def _layer(kind: Block, arch: Architecture, length: int, behind: int) -> float:
    """Forward FLOPs of one layer, per token of the input."""
    if kind.traced is not None:
        return kind.traced.flop_per_sample / length
    att, width, cross = kind.attention, kind.width or arch.hidden, kind.cross_attention
    own = kind.tokens or (behind if cross is not None else length)
    matrices = kind.active_parameters(arch.hidden) - _vectors(kind, width)
    flop = 2.0 * matrices + 2.0 * seen_keys(att, own) * att.heads * (att.head_dim + att.value_dim)
    flop += 4.0 * att.disentangled * att.heads * att.head_dim
    flop += 2.0 * kind.predicts_ahead * arch.vocabulary * arch.hidden
    if cross is None:
        return flop if own == length else flop * (own / length)
    inputs = 2.0 * width * cross.kv_heads * (cross.head_dim + cross.value_dim)
    flop += 2.0 * length * cross.heads * (cross.head_dim + cross.value_dim) - inputs
    return flop * (own / length) + inputs


def _vectors(kind: Block, width: int) -> int:
    """Parameters of a block that take no matrix product with tokens: norms, biases, tables."""
    vectors = kind.vector_parameters(width) + _attention_vectors(kind.attention, width)
    if kind.cross_attention is not None:
        vectors += _attention_vectors(kind.cross_attention, width)
    mlp = kind.mlp
    if isinstance(mlp, MLP):
        return vectors + mlp.bias * ((2 if mlp.gated else 1) * mlp.ffn_hidden + width)
    expert = (2 if mlp.gated else 1) * mlp.ffn_hidden + width
    return vectors + mlp.bias * (mlp.top_k * expert + mlp.experts)


def _attention_vectors(att: Attention, width: int) -> int:
    vectors = att.qk_norm * 2 * att.head_dim + att.output_bias * width
    vectors += att.qkv_bias * (att.heads + 2 * att.kv_heads) * att.head_dim
    vectors += att.heads * (att.sinks + att.relative_buckets)
    vectors += 2 * att.position_projections * (width + 1) * att.heads * att.head_dim
    if att.filtered:
        vectors += filter_parameters(att, width) - 2 * width * width
    return vectors + (att.q_lora_rank + att.kv_lora_rank if att.is_mla else 0)
