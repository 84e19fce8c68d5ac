"""What an operator or a kept tensor is for: the passes over a block's list decide by these.

Names are labels for people. A new module of a model gives its operators the roles below that fit;
what no rule singles out is ``OTHER``.
"""

from __future__ import annotations

from enum import Enum, auto


class GemmRole(Enum):
    """What a GEMM computes."""

    OTHER = auto()
    QUERY_KEY_VALUE = auto()
    """Projection of a block's input to queries, keys and values."""
    QUERY_UP = auto()
    """Latent attention: queries out of their compressed form (or of the input)."""
    KEY_VALUE_UP = auto()
    """Latent attention: keys and values out of their compressed form."""
    LATENT_DOWN = auto()
    """Latent attention: the compressed forms."""
    ATTENTION_OUTPUT = auto()
    """Projection of attention's result."""
    SCORES = auto()
    """Queries by keys, and scores by values, where no fused kernel computes them."""
    CROSS_ATTENTION = auto()
    """Any projection of a decoder's attention to its encoder."""
    FC1 = auto()
    """First linear (or gate and up) of a dense MLP."""
    FC2 = auto()
    EXPERT_FC1 = auto()
    """The same of routed experts."""
    EXPERT_FC2 = auto()
    SHARED_FC1 = auto()
    """The same of shared experts."""
    SHARED_FC2 = auto()
    ROUTER = auto()
    OUTPUT_HEAD = auto()
    """Product with the vocabulary's output table."""
    TASK_HEAD = auto()
    """Any product of the heads of several tasks, which stay trained where the model is frozen."""
    ADAPTER = auto()
    """A low-rank matrix beside a frozen one."""

    @property
    def is_first_of_mlp(self) -> bool:
        """Whether it is the first linear of a feed-forward module, of whichever kind."""
        return self in (GemmRole.FC1, GemmRole.EXPERT_FC1, GemmRole.SHARED_FC1)


class StreamRole(Enum):
    """What memory-bound kernels do; those that serve one product name it in ``Stream.product``."""

    OTHER = auto()
    LOOK_UP = auto()
    """Picks rows of a table by tokens or positions."""
    ATTENTION_NORM = auto()
    """First norm of a block: in front of its attention."""
    MLP_NORM = auto()
    """Second norm of a block: in front of its MLP."""
    ATTENTION_RESIDUAL = auto()
    """Sum behind a block's attention."""
    MLP_RESIDUAL = auto()
    """Sum behind a block's MLP."""
    ACTIVATION = auto()
    """Activation, and gate, between the linears of a dense MLP."""
    BIAS = auto()
    """Adds a linear's bias; sums its gradient."""
    CAST = auto()
    """Casts a linear's input, and its output's gradient, to fewer than 16 bit."""
    WEIGHT_CAST = auto()
    """Casts a linear's weight."""
    COLUMNS = auto()
    """Makes columns of what was cast along rows."""
    SCALES = auto()
    """Puts block scales into the tiles that a product reads."""
    DEQUANTISATION = auto()
    """Makes 16 bit of a frozen weight in 4 bit."""
    ADAPTER = auto()
    """Scales and adds what a low-rank adapter computes."""
    FAKE_QUANTISATION = auto()
    """Rounds a linear's weight or input and scales it back."""


class SavedRole(Enum):
    """What a tensor is that waits for the backward pass."""

    OTHER = auto()
    MASK = auto()
    """Of dropout."""
    NORM_INPUT = auto()
    LINEAR_INPUT = auto()
    """Input of a block's linears that nothing else keeps."""
    ROUTED_INPUT = auto()
    """Input of a router, kept in 16 bit for it, and of shared experts."""
    MERGED_INPUT = auto()
    """Input of a projection that merges positions, beside the blocks' own linears."""
    QUERIES = auto()
    KEYS = auto()
    VALUES = auto()
    ATTENTION_WEIGHTS = auto()
    """Scores after their softmax, where no fused kernel computes them."""
    ATTENTION_OUTPUT = auto()
    """Attention's result, which its own backward pass reads as the projection's does."""
    LOG_SUM_EXP = auto()
    """Statistics of a fused softmax."""
    CROSS_QUERIES = auto()
    CROSS_KEYS_AND_VALUES = auto()
    CROSS_ATTENTION_OUTPUT = auto()
    LATENT = auto()
    """Compressed queries, or keys and values, of latent attention: a norm reads them."""
    LATENT_NORMED = auto()
    """The same behind that norm: linears read them."""
    ACTIVATION_INPUT = auto()
    """Output of an MLP's first linear."""
    ACTIVATED_GATE = auto()
    """Activated half of a gated MLP's first output, where gate and product are kernels apart."""
    ACTIVATION_OUTPUT = auto()
    """Input of an MLP's second linear, which nothing else keeps."""
    RECTIFIED_OUTPUT = auto()
    """The same behind a rectifier, whose own backward pass reads it too."""
    ROUTER = auto()
    """What a router keeps of its scores."""
    LOGITS = auto()
