"""Model FLOPs of a step: what the published convention counts, whatever a layout executes."""

from __future__ import annotations

from simulator.record_cache import for_same_records
from simulator.workload.architecture import Architecture, Attention, Block
from simulator.workload.recipe import Workload


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
    of_kind = [_layer(block, arch, sequence_length, behind) for block in arch.blocks]
    for index in arch.layer_kinds:
        per_token += of_kind[index]
    return tokens * (
        3.0 * per_token - _spared(arch, sequence_length, behind, adapters, head_trained)
    )


@for_same_records(8)
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
        elif adapters or kind.passes_gradients:
            spared += _products(kind, arch.hidden)
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
    output = 2.0 * arch.output_rows * arch.table_columns
    once = 0.0
    for weight in arch.head_weights:
        output += weight.flop if weight.per == "token" else 0.0
        once += weight.flop if weight.per == "sequence" else 0.0
    if arch.tasks is not None:
        mixing = arch.tasks.mixing_flop(arch.last_width or arch.hidden)
        output, once = (output + mixing, once) if arch.tasks.per_token else (output, once + mixing)
    for weight in arch.embedding_weights:
        if weight.name == "patches":
            once += weight.flop * (length - arch.extra_embeddings)
        else:
            output += weight.flop
    share = behind / length if arch.is_encoder_decoder else 1.0
    return output * share + once / length


def _layer(kind: Block, arch: Architecture, length: int, behind: int) -> float:
    """Forward FLOPs of one layer, per token of the input."""
    if kind.traced is not None:
        return kind.traced.flop_per_sample / length
    att, width, cross = kind.attention, kind.width or arch.hidden, kind.cross_attention
    here = kind.tokens or (behind if cross is not None else length)
    flop = _products(kind, arch.hidden)
    if att is not None:
        pairs = seen_keys(att, here) * att.heads
        flop += 2.0 * pairs * (att.head_dim + att.value_dim)
        flop += 4.0 * att.disentangled * att.heads * att.head_dim
        if att.indexer is not None:
            flop += float(att.indexer.heads * att.indexer.head_dim * here)  # causal scores
    if kind.mixer is not None:
        flop += sum(product.flop for product in kind.mixer.products(here)) / here
    flop += 2.0 * kind.predicts_ahead * arch.vocabulary * arch.hidden
    if cross is None:
        return flop if here == length else flop * (here / length)
    inputs = 2.0 * width * cross.kv_heads * (cross.head_dim + cross.value_dim)
    flop += 2.0 * length * cross.heads * (cross.head_dim + cross.value_dim) - inputs
    return flop * (here / length) + inputs


def _products(kind: Block, hidden: int) -> float:
    """FLOPs of one token's products with the weights of a block."""
    return sum(weight.flop for weight in kind.weights(hidden))
