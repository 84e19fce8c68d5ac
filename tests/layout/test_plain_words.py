"""A layout's choices for people name what its short form names, word by word."""

import random

import pytest

from simulator.layout.layouts import Layouts
from simulator.layout.plain_words import layout_choices
from tests.scoring.held_models import drawn


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer_offload": "nvme", "sharding": "zero3"},
        {"optimizer_offload": "cpu", "parameter_offload": "nvme", "sharding": "zero3"},
        {"recompute": "full", "recompute_layers": 3, "offload_layers": 2},
        {"rank_order": "tp-cp-pp-dp", "pp": 2},
        {"cp": 2, "cp_kind": "all_to_all"},
        {"cp": 4, "cp_a2a": 2, "cp_kind": "hierarchical"},
        {"ep": 4, "etp": 2, "dispatcher": "allgather", "tp": 2},
        {"sharding": "zero3", "shard_group": 2, "reshard_after_forward": False},
        {"sharding": "zero3", "reshard_after_forward": 2},
    ],
)
def test_every_setting_has_its_word(given):
    layout = Layouts.of(**({"dp": 4, "sharding": "ddp"} | given))
    assert [choice.short for choice in layout_choices(layout.row())] == layout.describe().split()


def test_words_of_drawn_layouts():
    layouts = drawn()
    for row in random.Random(1).sample(range(len(layouts)), 20):
        words = [choice.short for choice in layout_choices(layouts[row].row())]
        assert words == layouts[row].describe().split()
