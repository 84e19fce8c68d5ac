"""Defaults that bear: each alternative is the answer that asking for it gives."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import InputError
from simulator.planner.assumptions import bearing_defaults
from simulator.planner.prediction import predict
from simulator.planner.variants import Variant
from simulator.scenario import make_scenario
from simulator.search.defaults import stated_layout

DENSE: dict[str, Any] = {
    "model": {"name": "llama-3.1-8b"},
    "training": {"sequence_length": 8192, "global_batch": 64},
    "cluster": {"name": "dgx-h100", "gpus": 16},
    "layout": {"tp": 2},
}
MOE: dict[str, Any] = {
    "model": {"name": "mixtral-8x7b"},
    "training": {"sequence_length": 4096, "global_batch": 256},
    "cluster": {"name": "dgx-h100", "gpus": 64},
    "layout": {"ep": 8, "pp": 4},
}


def alternatives(document: dict[str, Any], **choice: bool) -> list[Variant]:
    prediction = predict(make_scenario(document))
    layout, filled = prediction.estimate.layouts, prediction.defaults
    return bearing_defaults(prediction.scenario, layout, filled=filled, **choice)


@pytest.mark.parametrize("document", [DENSE, MOE])
def test_an_alternative_is_what_asking_for_it_gives(document: dict[str, Any]) -> None:
    found, told = alternatives(document), predict(make_scenario(document))
    document = {**document, "layout": stated_layout(told.layout, told.scenario.software)}
    assert {one.name.partition(" ")[0] for one in found} >= {"gradients", "software"}
    for one in found:
        path, value = one.change.split(" = ")
        section, field = path.split(".")
        value = {"true": True, "false": False}.get(value, value)
        asked = {**document, section: {**document.get(section, {}), field: value}}
        if field == "gradient_dtype":
            asked["training"]["reduce_dtype"] = value
        if one.step_time_s is None:
            with pytest.raises(InputError):
                predict(make_scenario(asked))
            continue
        other = predict(make_scenario(asked))
        assert one.step_time_s == pytest.approx(other.step_time_s)
        assert one.memory_total_bytes == pytest.approx(other.memory_bytes)
        assert one.memory_verdict == other.memory_verdict


def test_sequence_parallelism_that_nobody_asked_for_is_told_with_its_price() -> None:
    (told,) = [one for one in alternatives(DENSE, software=False) if "sequence" in one.name]
    assert told.change == "layout.sequence_parallel = false"
    without = predict(make_scenario(DENSE), sequence_parallel=False)
    assert told.step_time_s == without.step_time_s
    assert told.sentence(1.0).startswith("sequence parallelism with tp 2; with layout.sequence_")
    given = {**DENSE, "layout": {"tp": 2, "sequence_parallel": True}}
    assert not any("sequence" in one.name for one in alternatives(given, software=False))
    alone = {**DENSE, "layout": {"tp": 1}}
    assert not any("sequence" in one.name for one in alternatives(alone, software=False))


def test_what_was_chosen_is_no_default() -> None:
    chosen = {**MOE, "layout": {**MOE["layout"], "dispatcher": "deepep"}}
    chosen["training"] = {**MOE["training"], "gradient_dtype": "fp32"}
    assert alternatives(chosen, software=False) == []


def test_a_software_that_cannot_run_the_layout_says_why() -> None:
    found = alternatives({**DENSE, "cluster": {**DENSE["cluster"], "software": "deepspeed"},
                          "layout": {"sharding": "zero3"}})  # fmt: skip
    refused = [one for one in found if one.step_time_s is None]
    assert refused and all(one.reason for one in refused)
    assert "cannot run: " in refused[0].sentence(1.0)


WIDE: dict[str, Any] = {
    "model": {"name": "llama-3.1-70b"},
    "training": {"sequence_length": 8192, "global_batch": 128},
    "cluster": {"name": "dgx-h100", "gpus": 64, "software": "megatron-core"},
    "layout": {"tp": 4, "pp": 4, "micro_batch": 1},
}
"""A model whose layers are cut over tp in every server."""


def pipelining(document: dict[str, Any], **cluster: str) -> list[Variant]:
    document = {**document, "cluster": {**document["cluster"], **cluster}}
    return [one for one in alternatives(document) if "tp_comm_overlap" in one.change]


@pytest.mark.parametrize("software", ["megatron-core", "megatron-core-defaults", "torchtitan"])
def test_pipelined_tp_traffic_is_priced_as_its_field_asks_for_it(software: str) -> None:
    """Transformer Engine's tp_comm_overlap is userbuffers, torch's is async."""
    (told,) = pipelining(WIDE, software=software)
    assert told.change == "software.tp_comm_overlap = true"
    word = "async" if software == "torchtitan" else "userbuffers"
    document = {**WIDE, "cluster": {**WIDE["cluster"], "software": software}}
    plain, other = (
        predict(make_scenario({**document, "software": said}))
        for said in ({}, {"overlap": {"tensor": word}})
    )
    assert told.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)
    assert told.step_time_s is not None and told.step_time_s < plain.step_time_s


def test_pipelined_tp_traffic_is_no_choice_where_there_is_none() -> None:
    """No tp, no sequence parallelism (Megatron-LM refuses the flag), no buffers of the type."""
    for layout in ({"tp": 1, "pp": 8}, {"tp": 4, "pp": 4, "sequence_parallel": False}):
        assert pipelining({**WIDE, "layout": layout}) == []
    blockwise = {**WIDE, "training": {**WIDE["training"], "precision": "fp8_blockwise"}}
    assert pipelining(blockwise) == []
    assert pipelining(WIDE, software="megatron-lm-2022") == []
    assert pipelining(WIDE, software="torchtitan-async") == []
    stated = {**WIDE, "software": {"tp_comm_overlap": True}}
    assert pipelining(stated) == []


def test_a_dispatcher_is_told_with_what_speaks_against_its_price() -> None:
    others = alternatives(MOE, software=False)
    by = [one for one in others if one.change.startswith("layout.dispatcher")]
    assert by and by != others
    for one in others:
        assert one.sentence(1.0).endswith("pairs of dispatchers scatter widely") == (one in by)


def test_the_gather_of_parameters_is_priced_where_a_sharded_optimizer_has_it() -> None:
    """Megatron-LM's --overlap-param-gather needs --use-distributed-optimizer."""

    def gathers(sharding: str, name: str) -> list[Variant]:
        document = {**WIDE, "layout": {**WIDE["layout"], "sharding": sharding}}
        document["cluster"] = {**WIDE["cluster"], "gpus": 128, "software": name}
        return [one for one in alternatives(document) if "param_gather" in one.change]

    (off,) = gathers("zero1", "megatron-core")
    (on,) = gathers("zero1", "megatron-core-defaults")
    assert off.change.endswith("false") and on.change.endswith("true")
    asked = {**WIDE, "cluster": {**WIDE["cluster"], "gpus": 128}}
    asked["software"] = {"overlap": {"parameter_gather": False}}
    other = predict(make_scenario(asked), sharding="zero1")
    assert off.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)
    assert gathers("ddp", "megatron-core") == []
