"""Ways of training that a scenario may name and that are not modelled: each is told why."""

from __future__ import annotations

from collections.abc import Iterable

_QAT = (
    "by this name; quantisation-aware training stands in training.fake_quantised_weights,"
    " training.fake_quantised_inputs and training.fake_quantised_head"
)
_PRUNING = (
    "pruning: a model whose rows, heads or layers are cut is a smaller model, so give its sizes;"
    " masked weights take the time and memory of dense ones, and their masks a byte a parameter"
)
_SPARSE = (
    "2:4 sparsity: NVIDIA's parts since Ampere (A100, L4, L40S, H100, B200 and their kin) multiply"
    " it at twice the dense rate on their data sheets, all others not at all; in training only"
    " forward and input gradients can, after the weights were compressed again every step, and no"
    " timings of that are in the tables; the dense step is an upper bound"
)
_TEACHER = "here; a teacher stands in a section of its own, [distillation] teacher = NAME"
_SERVING = (
    "deployment is out of scope: serving, export and quantisation after training take no part in"
    " a training step"
)

_WORDS = {
    "qat": _QAT,
    "quantisation_aware": _QAT,
    "quantization_aware": _QAT,
    "fake_quantise": _QAT,
    "fake_quantize": _QAT,
    "pruning": _PRUNING,
    "prune": _PRUNING,
    "prune_fraction": _PRUNING,
    "sparsity": _SPARSE,
    "sparse": _SPARSE,
    "sparse_2_4": _SPARSE,
    "structured_sparsity": _SPARSE,
    "distillation": _TEACHER,
    "teacher": _TEACHER,
    "serving": _SERVING,
    "deployment": _SERVING,
    "inference": _SERVING,
}


def unsupported_fields(raw: Iterable[str], where: str, section: str) -> list[str]:
    """Say of every field, or section, that names what is not modelled why it is not.

    Examples
    --------
    >>> unsupported_fields(["serving"], "run.toml", "training")[0][:46]
    'run.toml: training.serving: not modelled: depl'
    """
    place = f"{where}: {section}." if section else f"{where}: "
    return [f"{place}{word}: not modelled: {_WORDS[word]}" for word in raw if word in _WORDS]
