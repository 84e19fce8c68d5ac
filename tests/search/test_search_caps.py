"""Caps of a search are said where they cut it, with what they cut, and nowhere else."""

from typing import Any

import pytest

from simulator.planner.batch_choices import MOST_TRIED, plan_over
from simulator.scenario import Scenario, make_scenario
from simulator.search import candidates as listing
from simulator.search.search_caps import search_caps


def scenario(several: bool = False, **sections: Any) -> Scenario:
    """Llama 3.1 70B on 64 H100s, with sections or fields replaced."""
    document: dict[str, dict[str, Any]] = {
        "model": {"name": "llama-3.1-70b"},
        "training": {"sequence_length": 8192, "global_batch": 64},
        "cluster": {"name": "dgx-h100", "gpus": 64},
    }
    for name, fields in sections.items():
        document[name] = {**document.get(name, {}), **fields}
    return make_scenario(document, several=several)


def tried(of: Scenario, field: str) -> set[int]:
    """Values of a field that the search lists."""
    table = listing.candidates(of.workload, of.cluster, of.software, of.pinned)
    return set(getattr(table, field).tolist())


@pytest.mark.parametrize(
    ("field", "cap", "cut"),
    [("tp", "MOST_DOMAINS", {32, 64}), ("cp", "FEWEST_TOKENS", {8, 16, 32, 64})],
)
def test_what_is_said_to_be_cut_is_what_a_higher_cap_would_list(
    field: str, cap: str, cut: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = scenario(layout={"recompute": "none", "micro_batch": 1, "vpp": 1})
    before = tried(of, field)
    (said,) = (line for line in search_caps(of) if line.startswith(field))
    assert said.endswith("a step from the best alone: " + ", ".join(map(str, sorted(cut))))
    monkeypatch.setattr(listing, cap, 1 if cap == "FEWEST_TOKENS" else 64)
    assert tried(of, field) - before == cut


def test_chunks_that_are_cut_are_named_with_their_pipelines() -> None:
    of = scenario(layout={"recompute": "none", "tp": 1, "cp": 1})
    assert search_caps(of) == ["virtual stages above 20 are not searched: 40 with pp 2"]
    assert 40 not in tried(of, "vpp") and max(tried(of, "vpp")) == 20


def test_layers_of_full_recomputation_are_steps() -> None:
    of = scenario(layout={"tp": 1, "cp": 1, "vpp": 1, "pp": 4})
    (line,) = search_caps(of)
    assert "8 of the up to 20 values" in line
    assert len(tried(of, "recompute_layers")) == 8
    assert not search_caps(scenario(layout={"tp": 1, "cp": 1, "vpp": 1, "pp": 16}))


def test_no_cap_cuts_what_is_pinned() -> None:
    pinned = {"tp": 8, "cp": 1, "pp": 4, "vpp": 1, "recompute": "selective"}
    assert not search_caps(scenario(layout=pinned))


@pytest.mark.evidence
def test_a_range_says_how_many_of_its_batches_were_tried() -> None:
    small: dict[str, Any] = {
        "model": {"name": "gpt2-small"},
        "cluster": {"gpus": 8},
        "layout": {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "recompute": "none"},
    }
    training = {"sequence_length": 1024, "global_batch": "8..4096"}
    found = plan_over(scenario(several=True, training=training, **small))
    assert len(found.tried) == MOST_TRIED
    # 8 to 4,096 are 10 powers of two, 12 to 3,072 are 9 numbers three times one
    assert f"{MOST_TRIED} of the 19 from 8 to 4,096" in found.sizes_left_out
    few = {**training, "global_batch": "8..64"}
    assert not plan_over(scenario(several=True, training=few, **small)).sizes_left_out
    assert not plan_over(
        scenario(training={**training, "global_batch": 64}, **small)
    ).sizes_left_out
