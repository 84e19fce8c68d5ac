"""Software profiles: what they support, what they say wrong input is."""

from dataclasses import replace
from pathlib import Path

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.software.mechanisms import (
    FSDP2,
    DeepSpeedZero,
    DistributedDispatch,
    DTensor,
    TransformerEngine,
)
from simulator.software.profile import Software, load_software

NAMES = ["megatron-core", "megatron-lm-2022", "plain-ddp", "torchtitan"]


EVERY = catalogue.names("software")


@pytest.fixture(params=EVERY)
def software(request: pytest.FixtureRequest) -> Software:
    return load_software(request.param)


def test_the_required_software_is_shipped() -> None:
    assert set(NAMES) <= set(EVERY)


def test_combinations_are_subsets(software: Software) -> None:
    can = software.supports
    assert can.sharding
    assert set(can.sharding_with_pipeline) <= set(can.sharding)
    assert set(can.sharding_with_tensor) <= set(can.sharding)
    assert bool(can.sharding_with_pipeline) == can.pipeline
    assert bool(can.sharding_with_tensor) == can.tensor
    assert can.pipeline or not ("interleaved" in can.schedules or can.uneven_stages)
    assert can.rank_orders and can.precisions and can.recompute


def test_rank_orders_name_every_dimension_once(software: Software) -> None:
    for order in software.supports.rank_orders:
        assert sorted(order.split("-")) == ["cp", "dp", "pp", "tp"]


def test_overlap_needs_what_it_hides(software: Software) -> None:
    can, overlap = software.supports, software.overlap
    assert overlap.tensor == "none" or can.tensor
    assert not overlap.pipeline_send or "interleaved" in can.schedules
    assert not overlap.context_ring or can.cp_kinds
    # zero2 of FSDP gathers its parameters for every micro-batch, too
    assert not overlap.sharded_prefetch or set(can.sharding) & {"zero2", "zero3"}
    assert not overlap.parameter_gather or set(can.sharding) & {"zero1", "zero2"}


def test_states_are_whole_bytes_and_at_least_fp32_masters(software: Software) -> None:
    states = software.states
    for figure in (states.weight, states.gradient, states.reduce, states.gather):
        assert float(figure) in (0.0, 2.0, 4.0, 6.0, 8.0)
    # an optimizer that updates the 16-bit weights themselves keeps 16-bit moments too
    # (DeepSeek-V3 beside fp32 masters: arXiv:2412.19437, section 3.3.3)
    # what FSDP shards is the parameter itself, of 16 bit where the model was made so (KempnerForge)
    pairs = {(4.0, 4.0), (0.0, 2.0), (4.0 if software.name == "deepseek-2024" else 2.0, 2.0)}
    assert (float(states.master), float(states.moment)) in pairs
    # gradient, weight and two moments read, all but the gradient written
    size = float(states.master) or 2.0
    assert states.optimizer_traffic >= size * 7


def test_bytes_per_parameter_worked_by_hand() -> None:
    def resident(name: str) -> float:
        states = load_software(name).states
        return states.weight + states.gradient + states.master + 2 * states.moment

    assert resident("megatron-lm-2022") == 18  # Korthikanti et al. 2022, figure 1
    assert resident("torchtitan") == 16  # all of it sharded
    assert resident("megatron-core") == 16  # bf16 gradients, as the performance recipes
    assert resident("plain-ddp") == 16  # copies of passes and of buckets come and go
    assert resident("torchtune-2024") == 8  # weights, gradients and moments in bf16
    assert resident("megatron-deepspeed-2022") == 16  # 16-bit gradients (ZeRO, section 3.1)
    # DeepSpeed's bf16 optimizer: 16-bit gradients and the fp32 copy that they are added to
    assert resident("megatron-deepspeed-2022-bf16") == 20


def test_low_types_need_a_framework_of_their_time() -> None:
    able = {name: set(load_software(name).supports.precisions) for name in EVERY}
    assert {name for name in EVERY if "nvfp4" in able[name]} == {
        "megatron-bridge",
        "megatron-bridge-25.11",
        "megatron-bridge-26.02",
        "megatron-bridge-26.04",
        "megatron-bridge-26.06",
        "megatron-bridge-26.06-library",
        "megatron-core",
        "megatron-core-defaults",
        "megatron-lm-plain",
        "megatron-lm-plain-2026",
        "mlperf-nemo-v5.1",
        "mlperf-nemo-v5.1-bf16-attention",
        "mlperf-nemo-v5.1-modules",
        "nemo-25.04",
    }
    for name in EVERY:
        if "2021" in name or "2022" in name:
            assert not able[name] - {"fp32", "tf32", "fp16", "bf16"}, name


def test_offload_is_said_by_those_that_have_it() -> None:
    found = {name for name in EVERY if load_software(name).supports.offload}
    assert found == {
        "arctic-training",
        "maxtext",
        "maxtext-gpu",
        "megatron-bridge",
        "megatron-bridge-25.11",
        "megatron-bridge-26.02",
        "megatron-bridge-26.04",
        "megatron-bridge-26.06",
        "megatron-bridge-26.06-library",
        "megatron-core",
        "megatron-core-defaults",
        "megatron-lm-plain",
        "megatron-lm-plain-2026",
        "mlperf-nemo-v5.1",
        "mlperf-nemo-v5.1-bf16-attention",
        "mlperf-nemo-v5.1-modules",
        "nemo-24.07",
        "nemo-25.04",
        "primus",
        "torch-fsdp",
        "torch-fsdp-compiled",
        "torchtune-2024",
        "torchtune-2024-eager",
        "verl-fsdp",
    }


def test_modules_and_dispatchers_are_words_that_mean_something(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'base = "megatron-core"\n[kernels]\nselective_modules = ["mpl"]\n'
        '[supports]\ndispatchers = ["deep-ep"]\n'
    )
    with pytest.raises(InputError) as caught:
        load_software(str(own))
    assert {problem.split(": ")[1] for problem in caught.value.problems} == {
        "kernels.selective_modules.0",
        "supports.dispatchers.0",
    }


def test_what_each_framework_can_run() -> None:
    core, old = load_software("megatron-core").supports, load_software("megatron-lm-2022").supports
    titan, ddp = load_software("torchtitan").supports, load_software("plain-ddp").supports
    assert "zero3" in core.sharding and "zero3" not in core.sharding_with_pipeline
    assert old.sharding == ("ddp",) and not (old.cp_kinds or old.expert or old.uneven_stages)
    assert "ddp" in titan.sharding and "ddp" not in titan.sharding_with_tensor
    assert titan.sequence_parallel == (True,) and titan.uneven_stages
    assert not (ddp.tensor or ddp.pipeline or ddp.cp_kinds or ddp.expert)
    assert "fp8" in core.precisions and "fp8" in titan.precisions
    assert "fp8" not in old.precisions and "fp8" not in ddp.precisions


def test_unfused_attention_is_the_old_code_only() -> None:
    unfused = {name for name in EVERY if load_software(name).kernels.attention == "unfused"}
    assert unfused == {
        name
        for name in EVERY
        if name.startswith(("megatron-lm-202", "megatron-deepspeed-202", "xla-tpu-202"))
    }


def test_an_unknown_name_brings_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        load_software("torchtita", where="run.toml", field="cluster.software")
    assert str(caught.value) == (
        "run.toml: cluster.software: unknown software 'torchtita' (did you mean 'torchtitan'?)"
    )


def test_an_unknown_field_brings_the_nearest(tmp_path: Path) -> None:
    text = catalogue.find("software", "torchtitan").read_text()
    wrong = tmp_path / "mine.toml"
    wrong.write_text(text.replace("gradient_reduce = true", "gradient_reduse = true"))
    with pytest.raises(InputError) as caught:
        load_software(str(wrong))
    assert str(caught.value) == (
        f"{wrong}: overlap.gradient_reduse: unknown field (did you mean 'gradient_reduce'?)"
    )


def test_all_errors_of_a_file_come_at_once(tmp_path: Path) -> None:
    text = catalogue.find("software", "plain-ddp").read_text()
    wrong = tmp_path / "mine.toml"
    text = text.replace('attention = "flash"', 'attention = "fast"')
    text = text.replace('sharding = ["ddp"]', 'sharding = ["zero4"]')
    text = text.replace(
        "seconds_per_kernel = { value = 12e-6,", "seconds_per_kernel = { value = -1,"
    )
    wrong.write_text(text)
    with pytest.raises(InputError) as caught:
        load_software(str(wrong))
    assert len(caught.value.problems) == 3
    assert {problem.split(": ")[1] for problem in caught.value.problems} == {
        "kernels.attention",
        "supports.sharding.0",
        "host.seconds_per_kernel",
    }


def test_a_source_that_is_not_listed_is_named(tmp_path: Path) -> None:
    text = catalogue.find("software", "plain-ddp").read_text()
    wrong = tmp_path / "mine.toml"
    wrong.write_text(text.replace('source = "adam"', 'source = "adamm"'))
    with pytest.raises(InputError, match=r"has no 'adamm'.*did you mean 'adam'"):
        load_software(str(wrong))


@pytest.mark.parametrize(
    ("table", "field", "there"),
    [
        ("kernels", "norm_casts", "kernels.transformer_engine"),
        ("kernels", "reduction_copies", "kernels.dtensor"),
        ("states", "gather_copies", "fsdp2"),
        ("allocator", "pools_by_stream", "fsdp2"),
        ("states", "offloads_gradients", "deepspeed_zero"),
        ("host", "split_block_forward_s", "host.distributed"),
        ("states", "user_buffers", "overlap"),
    ],
)
def test_a_field_of_another_table_is_shown_its_place(
    tmp_path: Path, table: str, field: str, there: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "megatron-core"\n[{table}]\n{field} = 1\n', encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_software(str(path))
    (line,) = error.value.problems
    assert line == f"{path}: {table}.{field}: unknown field: it stands in [{there}]"


def test_zero1_needs_weights_that_stay(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = 'base = "torchtitan"\n[supports]\nsharding = ["zero1", "zero2"]\n'
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"supports\.sharding: must be without zero1 where"):
        load_software(str(path))


def test_a_base_lends_its_mechanisms_field_by_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "torchtitan"\n[fsdp2]\nadds_unreduced = false\n[kernels.dtensor]\n'
        "whole_embedding_gradient = false\n",
        encoding="utf-8",
    )
    mine, titan = load_software(str(path)), load_software("torchtitan")
    assert mine.fsdp2 == replace(titan.fsdp2, adds_unreduced=False)
    assert titan.fsdp2.adds_unreduced and titan.fsdp2.keeps_gathered_with_pipeline
    dtensor = replace(titan.kernels.dtensor, whole_embedding_gradient=False)
    assert mine.kernels == replace(titan.kernels, dtensor=dtensor)


def test_mechanisms_are_neutral_where_a_framework_has_them_not() -> None:
    plain = load_software("plain-ddp")
    assert (plain.fsdp2, plain.deepspeed_zero) == (FSDP2(), DeepSpeedZero())
    assert plain.kernels.dtensor == DTensor()
    assert plain.kernels.transformer_engine == TransformerEngine()
    assert plain.host.distributed == DistributedDispatch()


def test_megatron_bridge_26_04_is_its_base_but_for_two_casts() -> None:
    """TransformerEngine#2486: casts to mxfp8 write tiles of scales, those to nvfp4 not yet; #2555:
    one kernel casts rows and columns to nvfp4."""
    base, newer = load_software("megatron-bridge-26.02"), load_software("megatron-bridge-26.04")
    engine = base.kernels.transformer_engine
    casts = replace(engine, swizzled_inputs=("nvfp4",), columns_cast_apart=())
    assert newer.kernels.transformer_engine == casts
    assert engine.columns_cast_apart == ("nvfp4",)
    assert engine.swizzled_inputs == ("mxfp8", "nvfp4")
    kernels = replace(newer.kernels, transformer_engine=engine)
    same = {"name": base.name, "release": base.release, "kernels": kernels}
    assert replace(newer, **same) == base


@pytest.mark.parametrize(
    ("orders", "said"),
    [('["tp-dp"]', "must be 'tp-cp-dp-pp'"), ("[]", "at least 1 item"), ("[3]", "must be 'tp-cp")],
)
def test_rank_orders_are_words_that_mean_something(tmp_path: Path, orders: str, said: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'base = "torchtitan"\n[supports]\nrank_orders = {orders}\n')
    with pytest.raises(InputError) as caught:
        load_software(str(path))
    assert f"{path}: supports.rank_orders" in str(caught.value)
    assert said in str(caught.value)


def test_a_generation_may_have_a_library_of_attention_of_its_own() -> None:
    """torchtitan calls PyTorch's attention, which takes cuDNN's kernels on Blackwell."""
    kernels = load_software("torchtitan-2026").kernels
    assert kernels.attention_library_of == {"blackwell": "cudnn"}
    assert kernels.on("blackwell").attention_library == "cudnn"
    assert kernels.on("hopper").attention_library == kernels.attention_library == "sdpa"


@pytest.mark.parametrize("forces_in_turn", [True, False])
@pytest.mark.parametrize("routing", ["forced", "balanced", None])
def test_experts_follow_in_turn_where_routing_is_forced_by_software_that_does_so(
    forces_in_turn: bool, routing: str | None
) -> None:
    kernels = replace(load_software("megatron-core").kernels, forces_in_turn=forces_in_turn)
    assert kernels.in_turn(routing) is (forces_in_turn and routing == "forced")
