"""NeMo 2: recipes in Python that are followed and never run, and the options of its command.

What recipes set is asked of the functions of NVIDIA/NeMo@8cfedd72 themselves, read by hand:
nemo/collections/llm/recipes/llama3_8b.py, llama31_405b.py, mixtral_8x7b.py, finetune_default.py.
"""

import re
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.interop.dialects.nemo_recipes import models, recipes
from simulator.interop.dialects.python_values import UNKNOWN, Made, Script
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from tests.interop.launch_samples import NEMO_2

OWN = """
from dataclasses import dataclass
from nemo import lightning as nl
from nemo.collections import llm
from megatron.core.distributed import DistributedDataParallelConfig

SEQ = 4 * 1024

@dataclass
class Mine(llm.Llama3Config8B):
    num_layers: int = 16
    vocab_size: int = 128256

def main(devices=8):
    strategy = nl.MegatronStrategy(
        tensor_model_parallel_size=2, sequence_parallel=True,
        ddp=DistributedDataParallelConfig(overlap_grad_reduce=True, grad_reduce_in_fp32=True),
    )
    trainer = nl.Trainer(
        devices=devices, num_nodes=2, max_steps=50, strategy=strategy,
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed", grad_reduce_in_fp32=False),
    )
    data = llm.MockDataModule(seq_length=SEQ, global_batch_size=64, micro_batch_size=2)
    model = llm.LlamaModel(Mine(), tokenizer=data.tokenizer)
    llm.train(model=model, data=data, trainer=trainer, optim=None)

main()
"""


def read(folder: Path, text: str, name: str = "run.py", gpus: int | None = None) -> Imported:
    (folder / name).write_text(text)
    given = {"cluster": "dgx-h100"} | ({} if gpus is None else {"gpus": gpus})
    return import_launch([folder / name], given)


def said(found: Imported) -> dict[str, object]:
    return {item.field: item.value for item in found.origins}


def test_a_recipe_is_what_it_sets_and_what_the_script_changes(tmp_path: Path) -> None:
    found = read(tmp_path, NEMO_2)
    fields = said(found)
    assert found.scenario.cluster.gpus == 8
    assert found.scenario.workload.architecture.name == "llama-3-8b"
    assert (fields["layout.tp"], fields["layout.cp"], fields["layout.pp"]) == (2, 1, 1)
    assert (fields["layout.recompute"], fields["layout.recompute_layers"]) == ("full", 4)
    assert (fields["training.precision"], fields["training.fp8_weights"]) == ("fp8", True)
    assert (fields["training.global_batch"], fields["training.sequence_length"]) == (256, 8192)
    assert fields["run.checkpoints.mode"] == "async"
    assert fields["training.reduce_dtype"] == "fp32"  # of bf16_mixed, which the fp8 one is over
    sources = {item.field: item.source for item in found.origins}
    assert sources["layout.tp"].endswith("line 10: trainer.strategy.tensor_model_parallel_size")
    assert sources["layout.pp"].startswith("NeMo's recipe llama3_8b pretrain (NVIDIA/NeMo@")
    assert not found.unknown


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("llama31_405b.pretrain_recipe(num_nodes=64)", {"tp": 8, "pp": 8, "vpp": 2, "cp": 4}),
        ("mixtral_8x7b.pretrain_recipe()", {"tp": 1, "pp": 4, "vpp": 8, "ep": 8}),
        ("mixtral_8x7b.pretrain_recipe(performance_mode=True)", {"tp": 8, "pp": 4, "ep": 1}),
        ("llama31_405b.finetune_recipe(num_nodes=3)", {"tp": 4, "pp": 6, "vpp": 7}),
        ("llama31_405b.finetune_recipe(num_nodes=14, peft_scheme=None)", {"tp": 8, "pp": 14}),
        ("llama3_8b.finetune_recipe(peft_scheme='none')", {"tp": 2, "pp": 1}),
    ],
)
def test_degrees_of_recipes(call: str, fields: dict[str, int], tmp_path: Path) -> None:
    text = f"from nemo.collections import llm\nrecipe = llm.{call}\n"
    if "405b" in call:  # 126 layers and what counts as one: 128 over 8 x 2, 6 x 7 has 3 and 2 less
        text += "recipe.trainer.strategy.account_for_embedding_in_pipeline_split = False\n"
        text += "recipe.trainer.strategy.account_for_loss_in_pipeline_split = False\n"
        text += "recipe.trainer.strategy.virtual_pipeline_model_parallel_size = None\n"
        fields = {k: v for k, v in fields.items() if k != "vpp"}
    gpus = 512 if "num_nodes=64" in call else None
    found = said(read(tmp_path, text, gpus=gpus))
    assert {name: found[f"layout.{name}"] for name in fields} == fields


def test_adapters_and_packing_of_a_finetuning(tmp_path: Path) -> None:
    text = (
        "from functools import partial\nfrom nemo.collections import llm\n"
        "recipe = partial(llm.llama3_8b.finetune_recipe, num_nodes=1)(packed_sequence=True)\n"
        "recipe.peft.dim = 16\n"
    )
    fields = said(read(tmp_path, text))
    assert (fields["training.lora_rank"], fields["training.batching"]) == (16, "packed")
    assert (fields["training.sequence_length"], fields["training.global_batch"]) == (4096, 8)
    assert fields["layout.sharding"] == "ddp"  # use_distributed_optimizer off with adapters


def test_a_script_of_ones_own_calls(tmp_path: Path) -> None:
    """Half of Llama 3 8B's layers: 2 x 128,256 x 4,096 + 16 layers + a norm."""
    found = read(tmp_path, OWN)
    layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 + 2 * 4096
    assert found.scenario.workload.architecture.parameters == (
        2 * 128256 * 4096 + 16 * layer + 4096
    )
    fields = said(found)
    assert found.scenario.cluster.gpus == 16
    assert fields["training.reduce_dtype"] == "bf16"  # the plugin's outranks that of ddp
    assert (fields["training.sequence_length"], fields["layout.micro_batch"]) == (4096, 2)
    alone = read(tmp_path, OWN.replace("num_nodes=2, ", ""))
    assert alone.scenario.cluster.gpus == 8
    assert any("num_nodes not said: 1" in note for note in alone.notes)


def test_arguments_of_a_recipe_are_its_fields(tmp_path: Path) -> None:
    """A branch whose test is not known and that returns does not end what is followed."""
    text = (
        "import os\nimport nemo_run as nr\nfrom nemo.collections import llm\n"
        "def main():\n    if not os.path.exists('x'):\n        return False\n"
        "    recipe = llm.nemotron3_8b.pretrain_recipe(tensor_parallelism=4, num_nodes=2,\n"
        "        max_steps=9, global_batch_size=64, seq_length=2048, max_lr=1e-4)\n"
        "    nr.run(recipe)\n    return True\nmain()\n"
    )
    (tmp_path / "run.py").write_text(text)
    given, options = {"cluster": "dgx-h100"}, ["model.vocab_size=256000"]
    fields = said(import_launch([tmp_path / "run.py"], given, options))
    assert (fields["layout.tp"], fields["cluster.gpus"]) == (4, 16)
    assert (fields["training.global_batch"], fields["training.sequence_length"]) == (64, 2048)
    with pytest.raises(InputError, match="tensor_size: is an argument of a recipe that is not"):
        read(tmp_path, text.replace("tensor_parallelism", "tensor_size"))


def test_the_plugin_overwrites_what_the_model_says_of_eight_bit(tmp_path: Path) -> None:
    """update_config_with_dtype_overrides: every field of the plugin's is set on the model."""
    text = NEMO_2.replace("    recipe.trainer.plugins = bf16_with_fp8_mixed()\n", "").replace(
        "    return recipe\n", '    recipe.model.config.fp8 = "hybrid"\n    return recipe\n'
    )
    found = read(tmp_path, text)
    assert said(found)["training.precision"] == "bf16"
    assert any("'hybrid' is overwritten by the precision plugin" in note for note in found.notes)


def test_the_command_of_nemo(tmp_path: Path) -> None:
    line = 'nemo llm pretrain -y --factory "llama31_70b(num_nodes=16)" trainer.max_steps=10'
    found = read(tmp_path, f"{line} trainer.strategy.tensor_model_parallel_size=8\n", "run.sh")
    assert found.scenario.cluster.gpus == 128
    assert {k: said(found)[f"layout.{k}"] for k in ("tp", "pp", "vpp", "cp")} == {
        "tp": 8, "pp": 4, "vpp": 5, "cp": 2,
    }  # fmt: skip
    assert found.scenario.workload.architecture.name == "llama-3.1-70b"
    with pytest.raises(InputError, match="trains nothing"):
        read(tmp_path, "nemo llm export --path x --target hf\n", "run.sh")


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("llm.llama3_8b.", "llm.llama3_9b.", r"no recipe of NeMo .*did you mean 'llama3_8b'"),
        ("    return recipe\n", "    return tuned(recipe)\n", "tuned: may change the recipe"),
        ("nodes=1, gpus", "nodes=N, gpus", r"num_nodes: must be a whole number from 1, got 'N'"),
        ("size = 2\n", "size = sizes()[0]\n", "stands in a variable"),
        ("llm.llama3_8b.pre", "llm.t5_220m.pre", "no recipe of NeMo"),
        ("import nemo_run", "import = nemo_run", "no Python that can be read"),
        ("= bf16_with_fp8", "= bf16_with_int4", "a precision not read here"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    before: str, after: str, rule: str, tmp_path: Path
) -> None:
    assert before in NEMO_2
    with pytest.raises(InputError, match=rule):
        read(tmp_path, NEMO_2.replace(before, after))


def test_a_script_that_sets_up_no_run_is_refused(tmp_path: Path) -> None:
    text = "from nemo.collections import asr\nmodel = asr.models.EncDecCTCModel()\n"
    with pytest.raises(InputError, match="sets up no run of NeMo"):
        read(tmp_path, text, gpus=8)
    with pytest.raises(InputError, match="a file of NeMo's performance scripts"):
        line = "python -m scripts.performance.llm.pretrain_llama3_8b -tp 2 --micro_batch_size 1\n"
        read(tmp_path, line, "run.sh", gpus=8)


def test_nothing_of_a_script_is_run_and_work_is_bounded() -> None:
    text = "import os\nos.system('touch ran')\nx = [1]\nwhile True:\n    x = x + x\n"
    script = Script(text, "x.py", lambda *_: None)
    assert len(script.names["x"]) == 2  # a body whose end is not known is followed once
    assert (
        Script("def f():\n    return f()\nx = f()\n", "x.py", lambda *_: None).names["x"] is UNKNOWN
    )
    digits = "y = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
    loops = "".join(f"{'  ' * depth}for v{depth} in y:\n" for depth in range(6))
    for text in (f"{digits}{loops}{'  ' * 6}z = v0 + v1\n", "def f():\n  f()\n  f()\nf()\n"):
        with pytest.raises(InputError, match="too much to work out"):
            Script(text, "x.py", lambda *_: None)


def test_values_follow_the_language() -> None:
    """Held against Python's own evaluation of the same text."""
    text = (
        "a = 7 // 2 + 3 * 2 - 9 % 4\nb = 'x' if a > 6 else 'y'\nc = [1, 2] + [a]\n"
        "d = {'k': c[-1]}['k']\ne = f'{a}-{b}'\ng = not (a == 8 and b is not None)\n"
        "def f(p, q=2, *, r=3):\n    if q in (1, 2):\n        p += r\n    return p * q\n"
        "h = f(1, r=5)\ni = 'A,B'.lower().split(',')\nj = int('4') + len(c)\nk = None or 0 or 'z'\n"
    )
    script, python = Script(text, "x.py", lambda *_: None), dict[str, object]()
    exec(text, python)
    assert {key: script.names[key] for key in "abcdeghijk"} == {
        key: python[key] for key in "abcdeghijk"
    }
    other = Script("import x\na = x.y(1, b=2)\na.c.d = 3\ne = a.q\n", "x.py", lambda *_: None)
    assert isinstance(other.names["a"], Made)
    assert other.names["a"].fields["b"] == 2
    assert other.names["a"].fields["c"].fields["d"] == 3
    assert other.names["e"] is UNKNOWN


def test_tables_have_a_model_for_each_recipe() -> None:
    kinds = {row["model.config.kind"] for row in recipes().values()}
    assert kinds <= set(models())
    assert {case.split(" ")[1] for case in recipes()} == {"pretrain", "finetune"}


def test_what_megatrons_words_leave_out_is_asked_for(tmp_path: Path) -> None:
    """Gemma 2 has norms behind its modules, too, and no size of it is in the zoo as 2B."""
    text = "from nemo.collections import llm\nrecipe = llm.gemma2_2b.finetune_recipe()\n"
    with pytest.raises(InputError, match=r"Gemma2Config2B, a model of NeMo that is not read"):
        read(tmp_path, text)
    given = {"cluster": "dgx-h100", "model": "gemma-2-9b"}
    assert import_launch([tmp_path / "run.py"], given).scenario.workload.architecture.layers == 42


def test_the_tokenizer_and_what_is_set_everywhere(tmp_path: Path) -> None:
    text = OWN.replace("    vocab_size: int = 128256\n", "").replace(
        "seq_length=SEQ,", "seq_length=SEQ, tokenizer=AutoTokenizer(pretrained_model_name='x/y'),"
    )
    with pytest.raises(InputError, match=r"cannot|not said by these files"):
        read(tmp_path, text)
    null = text.replace("AutoTokenizer(pretrained_model_name='x/y')", "Null(vocab_size=50257)")
    assert read(tmp_path, null).scenario.workload.architecture.vocabulary == 50257
    lines = (
        "from nemo.collections import llm\nrecipe = llm.llama3_8b.pretrain_recipe(num_nodes=1)\n"
        "recipe.broadcast(max_steps=7, tensor_model_parallel_size=4)\n"
    )
    found = read(tmp_path, lines)
    assert said(found)["layout.tp"] == 4
    assert found.scenario.workload.recipe.steps == 7


RECIPE = """import nemo_run as run
from nemo.collections import llm
recipe = llm.llama3_8b.pretrain_recipe(num_nodes=2, num_gpus_per_node=8)
LINES
run.run(recipe)
"""


@pytest.mark.parametrize(
    ("lines", "field", "value"),
    [
        ("for k, v in {'num_nodes': 4}.items():\n    setattr(recipe.trainer, k, v)", "gpus", 32),
        ("for n in [1, 2, 4]:\n    recipe.trainer.num_nodes = n\n    if n == 2:\n        break",
         "gpus", 16),
        ("for n in [4, 2]:\n    if n == 2:\n        continue\n    recipe.trainer.num_nodes = n",
         "gpus", 32),
        ("o = {'a': 1}\no.update(n=8)\nrecipe.trainer.num_nodes = {**o, 'a': 2}['n']", "gpus", 64),
        ("other = copy.deepcopy(recipe)\nother.trainer.num_nodes = 64", "gpus", 16),
        ("recipe.trainer.num_nodes = dict({'n': 3}, m=1)['n']", "gpus", 24),
        (
            "recipe.trainer.callbacks.append(run.Config(llm.MegatronCommOverlapCallback,"
            " tp_comm_overlap=True))\nrecipe.trainer.strategy.tensor_model_parallel_size = 2",
            "software.tp_comm_overlap",
            True,
        ),
        ("recipe.trainer.strategy.me = recipe.trainer.strategy", "gpus", 16),
        (
            "p = argparse.ArgumentParser()\np.add_argument('--tp', type=int, default=2)\n"
            "p.add_argument('--flat', dest='sp', action='store_false')\np.set_defaults(tp=4)\n"
            "a = p.parse_args()\nrecipe.trainer.strategy.tensor_model_parallel_size = a.tp\n"
            "recipe.trainer.strategy.sequence_parallel = a.sp",
            "layout.sequence_parallel",
            True,
        ),
    ],
)  # fmt: skip
def test_statements_do_what_python_does(
    lines: str, field: str, value: object, tmp_path: Path
) -> None:
    found = read(tmp_path, RECIPE.replace("LINES", lines))
    assert (found.scenario.cluster.gpus if field == "gpus" else said(found)[field]) == value


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ("while recipe.trainer.num_nodes < 64:\n    recipe.trainer.num_nodes *= 2", "read once"),
        ("if torch.cuda.is_available():\n    recipe.data.micro_batch_size = 2", "both ways"),
        ("if torch.cuda.device_count() == 8:\n    recipe.data.micro_batch_size = 2", "both ways"),
        ("recipe.trainer.devices = torch.cuda.device_count()", "trainer.devices: .* a variable"),
        ("match 1:\n    case 1:\n        recipe.trainer.num_nodes = 64", "line 4: a statement"),
        ("del recipe.trainer.callbacks", "line 4: a statement"),
        ("[recipe.trainer.callbacks.append(x) for x in y]", "line 4: a statement"),
        ("recipe.trainer.callbacks = [c for c in x]", "callbacks: cannot be worked out"),
        ("setattr(recipe.trainer, word(), 8)", "line 4: what is set here is not known"),
        ("llm.llama3_8b.pretrain_recipe(**mine)", "line 4: what is said here is not known"),
        ("x = sizes()[0]\nx.y = 2", "line 5: what 'y' is set of is not known"),
        ("n = int(os.environ.get('NODES', '2'))", "line 4: NODES of the environment"),
        ("a = argparse.ArgumentParser().parse_args()", "options of the script"),
        ("run.run(recipe)", "the first of 2 runs"),
    ],
)
def test_what_a_script_leaves_open_is_said(lines: str, note: str, tmp_path: Path) -> None:
    notes = read(tmp_path, RECIPE.replace("LINES", lines)).notes
    assert any(re.search(note, text) for text in notes), notes


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("LINES", "recipe.trainer.strategy = [c for c in x]", "is no MegatronStrategy"),
        ("llm.llama3_8b.pretrain_recipe(", "mine(", "mine makes the run, and stands in another"),
        ("LINES", "x = [1]\n" + "x = [x, x]\n" * 60 + "recipe.trainer.num_nodes = x", "not said"),
        ("LINES", f"a = '{'a' * 9000}'\nb = a.replace('a', a)\nrecipe.trainer.num_nodes = len(b)",
         "not said"),
        ("LINES", "p = argparse.ArgumentParser()\np.add_argument('n', type=int)\n"
         "recipe.trainer.num_nodes = p.parse_args().n", "not said"),
        ("LINES", "recipe.trainer.num_nodes = 10**10**10", "not said"),
        ("LINES", "recipe.trainer.num_nodes = f'{2:03d}'", "not said"),
        ("LINES", "x = run.Config(llm.A)\nfor n in [" + "0, " * 300 + "]:\n    "
         "x = run.Config(llm.A, a=x)\nrecipe.data.more = x", "more than 200 parts"),
    ],
)  # fmt: skip
def test_what_would_grow_or_is_not_known_is_refused(
    before: str, after: str, rule: str, tmp_path: Path
) -> None:
    text = RECIPE.replace(before, after).replace(
        "LINES", "recipe.trainer.devices = 8\nrecipe.data.global_batch_size = 8"
    )
    with pytest.raises(InputError, match=rule):
        read(tmp_path, text)


def test_parts_that_are_in_several_are_read_once(tmp_path: Path) -> None:
    """Thirty of these in one another would be a thousand million paths."""
    nested = "x = run.Config(llm.A)\n" + "x = run.Config(llm.A, a=x, b=x)\n" * 30
    lines = f"{nested}recipe.data.more = x\nrecipe.broadcast(max_steps=7)"
    assert read(tmp_path, RECIPE.replace("LINES", lines)).scenario.workload.recipe.steps == 7
