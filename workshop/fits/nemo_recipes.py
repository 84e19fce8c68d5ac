"""Recipes and model sizes of NeMo 2 as tables, worked out from a checkout's text; nothing is run.

    python -m workshop.fits.nemo_recipes CHECKOUT [FOLDER]

writes ``nemo_recipes.csv`` and ``nemo_models.csv`` next to the reader that takes them
(``simulator/interop/dialects/nemo_recipes.py``), or into FOLDER.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from simulator.interop.dialects import nemo_recipes
from simulator.interop.dialects.python_values import Function, Made, Name, Script

_PACKAGE = "nemo.collections.llm.recipes."
_OTHERS = re.compile(r"bert|e5_|t5_|hyena|embedding|reranker|hf_auto|^recipes$|adam|sgd|default")
"""Recipes of what is no decoder of text, and modules that have none."""
_KEPT = re.compile(
    r"trainer\.(?:num_nodes|devices|max_steps)$|trainer\.callbacks$|peft\."
    r"|trainer\.strategy\.(?!expert_tensor_model)(?:\w*parallel_size|sequence_parallel|fsdp|ckpt_async_save"
    r"|account_for_\w+|num_layers_in_\w+|pipeline_model_parallel_layout)$"
    r"|trainer\.strategy\.ddp\.(?:overlap_\w+|grad_reduce_in_fp32|data_parallel_sharding_strategy)$"
    r"|trainer\.plugins\.(?:precision|grad_reduce_in_fp32|fp8|fp8_recipe|fp8_param_gather)$"
    r"|data\.(?:seq_length|global_batch_size|micro_batch_size|packed_sequence_specs\..*)$"
    r"|optim\.config\.(?:optimizer|use_\w+|\w+_dtype|main_\w+)$"
    r"|model\.config\.(?:recompute_\w+|cross_entropy_\w+|cpu_offloading\w*|moe_token_\w+"
    r"|moe_enable_deepep|moe_permute_fusion|gradient_accumulation_fusion|tp_comm_overlap|overlap_\w+"
    r"|mtp_num_layers)$|log\.ckpt\.every_n"
)
"""Fields of a recipe that bear on time or memory."""
_SIZES = [
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "gated_linear_unit", "normalization", "position_embedding_type"),
    *("add_bias_linear", "add_qkv_bias", "share_embeddings_and_output_weights", "qk_layernorm"),
    *("num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_layer_freq"),
    *("moe_shared_expert_intermediate_size", "multi_latent_attention", "q_lora_rank"),
    *("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "activation_func"),
    *("hybrid_override_pattern", "mamba_state_dim", "mamba_num_groups", "mamba_head_dim"),
    *("mamba_num_heads", "hidden_dropout", "attention_dropout", "make_vocab_size_divisible_by"),
    *("vocab_size", "squared_relu"),
]


class _Checkout:
    """Modules of a checkout, each followed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[str, Script | None] = {}
        self.reader = nemo_recipes._Following("nemo")

    def module(self, dotted: str) -> Script | None:
        if dotted not in self._modules:
            self._modules[dotted] = None
            file = self.root / f"{dotted.replace('.', '/')}.py"
            if dotted.startswith(_PACKAGE) and file.is_file():
                text = file.read_text()
                self._modules[dotted] = Script(text, dotted, self.known, main=False)
        return self._modules[dotted]

    def known(self, dotted: str, arguments: list[Any], keywords: dict[str, Any], line: int) -> Any:
        """A call of another recipe module is followed there."""
        if "precision" not in dotted and dotted.startswith(_PACKAGE):
            module = self.module(dotted.rpartition(".")[0])
            function = module.names.get(dotted.rpartition(".")[2]) if module else None
            if module is not None and isinstance(function, Function):
                return module.called(function, arguments, keywords, line)
        if re.search(r"_recipe$", dotted):
            return None
        return self.reader.known(dotted, arguments, keywords, line)


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Made):
        if value.kind and prefix.rpartition(".")[2] in ("config", "peft", "model"):
            yield f"{prefix}.kind", value.kind
        for name, inner in value.fields.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
    elif prefix.endswith("trainer.callbacks") and isinstance(value, list):
        kinds = [item.kind for item in value if isinstance(item, Made)]
        kept = dict.fromkeys(kind for kind in kinds if kind in nemo_recipes._CALLBACKS)
        if kept:
            yield prefix, "+".join(kept)
        yield from _arguments([item for item in value if isinstance(item, Made)])
    elif isinstance(value, list):
        yield prefix, " ".join(map(str, value))
    elif isinstance(value, Name):
        yield prefix, value.last
    elif value is not None:
        yield prefix, str(value)


def _arguments(callbacks: list[Made]) -> Iterator[tuple[str, str]]:
    """Arguments of callbacks that outrank what else is set."""
    for item in callbacks:
        for name in ("tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather"):
            if item.kind == "MegatronCommOverlapCallback" and name in item.fields:
                yield f"model.config.{name}", str(item.fields[name])


def _cases(module: Script) -> Iterator[tuple[str, Made]]:
    before = module.names.get("pretrain_recipe")
    if isinstance(before, Function):
        for fast in (False, True):
            takes = any(a.arg == "performance_mode" for a in before.node.args.args)
            if fast and not takes:
                continue
            keywords = {"performance_mode": True} if fast else {}
            recipe = module.called(before, [], keywords, 0)
            if isinstance(recipe, Made):
                yield "pretrain" + " performance" * fast, recipe
    after = module.names.get("finetune_recipe")
    for scheme, packed, fast in product(("lora", None), (False, True), (False, True)):
        if not isinstance(after, Function):
            return
        names = {a.arg for a in after.node.args.args}
        wanted: dict[str, Any] = {
            "peft_scheme": scheme,
            "packed_sequence": packed,
            "performance_mode": fast,
        }
        unsaid = {"packed_sequence"} if packed else set()
        unsaid |= {"performance_mode"} if fast else set()
        if not unsaid <= names:
            continue
        said: dict[str, Any] = {k: v for k, v in wanted.items() if k in names}
        if isinstance(recipe := module.called(after, [], said, 0), Made):
            words = ["finetune", scheme or "none", *["packed"] * packed, *["performance"] * fast]
            yield " ".join(words), recipe


def _recipes(checkout: _Checkout) -> dict[str, dict[str, str]]:
    rows = {}
    for file in sorted((checkout.root / _PACKAGE.replace(".", "/")).glob("*.py")):
        if _OTHERS.search(file.stem) or file.stem == "__init__":
            continue
        module = checkout.module(f"{_PACKAGE}{file.stem}")
        for case, made in _cases(module) if module is not None else ():
            flat = dict(_flat(made, ""))
            path = str(flat.get("resume.restore_config.path", "")).removeprefix("nemo://")
            row = {k: v for k, v in flat.items() if _KEPT.search(k) or k == "model.config.kind"}
            rows[f"{file.stem} {case}"] = {**row, "repository": path}
    return rows


def _classes(checkout: _Checkout) -> dict[str, dict[str, str]]:
    """Fields of the classes of models' configurations, those of their bases among them."""
    bodies: dict[str, ast.ClassDef] = {}
    for file in sorted((checkout.root / "nemo/collections/llm/gpt/model").glob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                bodies.setdefault(node.name, node)

    def fields(name: str) -> dict[str, str]:
        node, values = bodies.get(name), dict[str, str]()
        if node is None:
            return {}
        for base in reversed(node.bases):
            values |= fields(ast.unparse(base).rpartition(".")[2])
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value:
                text = ast.unparse(item.value).strip("'\"")
                values[item.target.id] = text.rpartition(".")[2] if "F." in text else text
        return values

    rows = {}
    for name in bodies:
        row = {k: v for k, v in fields(name).items() if k in _SIZES and v != "None"}
        if (
            row
            and name.rstrip("0123456789abBkKxM_").endswith(("Config", "ConfigSuper", "ConfigUltra"))
        ) or ({"num_layers", "hidden_size", "num_attention_heads"} <= set(row)):
            rows[name] = _plain(row)
    return rows


def _plain(row: dict[str, str]) -> dict[str, str]:
    """Numbers written out; a squared relu by its own switch."""
    kept = {}
    for key, text in row.items():
        try:
            kept[key] = str(ast.literal_eval(text)) if text[:1] != "[" else text
        except (ValueError, SyntaxError):
            kept[key] = text
    if "squared_relu" in kept.pop("activation_func", ""):
        kept["squared_relu"] = "True"
    return kept


def _write(file: Path, first: str, rows: dict[str, dict[str, str]]) -> None:
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    with file.open("w", newline="") as target:
        writer = csv.DictWriter(target, [first, *columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows({first: name, **row} for name, row in rows.items())


def main(root: Path, folder: Path) -> None:
    """Write both tables."""
    checkout = _Checkout(root)
    rows, classes = _recipes(checkout), _classes(checkout)
    for row in rows.values():
        kind, repository = row.get("model.config.kind", ""), row.pop("repository")
        if repository and kind in classes:
            classes[kind].setdefault("repository", repository)
    for row in rows.values():
        row |= {"model.config.kind": row.get("model.config.kind", "")}
    _write(folder / "nemo_recipes.csv", "case", rows)
    _write(folder / "nemo_models.csv", "class", classes)


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    main(given[0], given[1] if len(given) > 1 else Path(nemo_recipes.__file__).parent)
