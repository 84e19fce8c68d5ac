"""Order of work: small tables written out, published bubbles and activation counts, laws.

The orders themselves are held against torch's in tests/oracles/test_pipelining.py.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.files import build
from simulator.layout.layout_section import LayoutSection
from simulator.layout.stages import stages
from simulator.schedules.action_tables import Actions, actions, in_flight, unpaired
from simulator.schedules.registry import SCHEDULES, WORDS
from simulator.schedules.schedule import FORWARD, KINDS
from simulator.software.supports import Supports

EVEN = [(4, 16), (8, 32)]


def vpp_of(schedule: str) -> int:
    return SCHEDULES[schedule].fewest_chunks


def written(table: Actions, pp: int) -> list[str]:
    """Each rank as words: kind, micro-batch and, where there are several, the piece."""
    many = len(set(table.chunk.tolist())) > 1
    ranks: list[list[str]] = [[] for _ in range(pp)]
    columns = (table.rank, table.kind, table.micro_batch, table.piece, table.with_next)
    for rank, kind, batch, piece, pair in zip(*(x.tolist() for x in columns), strict=True):
        at = f"@{piece}" if many else ""
        ranks[rank].append(f"{KINDS[kind]}{batch}{at}{'+' if pair else ''}")
    return [" ".join(words) for words in ranks]


SUPPORTS = {"sharding": ["ddp"], "sharding_with_pipeline": [], "sharding_with_tensor": []}


def test_a_software_profile_and_a_scenario_know_every_word() -> None:
    made = build(Supports, {**SUPPORTS, "schedules": list(SCHEDULES)}, where="x.toml")
    assert made.schedules == WORDS == tuple(SCHEDULES)
    for word in (*WORDS, "any"):
        assert build(LayoutSection, {"schedule": word}, where="x.toml").schedule == word


@pytest.mark.parametrize(
    ("schema", "raw", "field"),
    [
        (Supports, {**SUPPORTS, "schedules": ["1f1b", "zbv"]}, "schedules.1"),
        (LayoutSection, {"schedule": "zbv"}, "schedule"),
    ],
)
def test_no_other_word_is_known(schema: Any, raw: dict[str, Any], field: str) -> None:
    said = rf"x.toml: {field}: must be '1f1b', 'interleaved', .*'pipedream_2bw'.*, got 'zbv'"
    with pytest.raises(InputError, match=said):
        build(schema, raw, where="x.toml")


# --- small tables, by hand ----------------------------------------------------------------------


def test_gpipe_goes_all_the_way_forward_first() -> None:
    assert written(actions("gpipe", 2, 3), 2) == ["F0 F1 F2 B0 B1 B2"] * 2


def test_breadth_first_finishes_a_chunk_before_the_next() -> None:
    assert written(actions("looped_bfs", 2, 2, 2), 2) == [
        "F0@0 F1@0 F0@2 F1@2 B1@2 B0@2 B1@0 B0@0",
        "F0@1 F1@1 F0@3 F1@3 B1@3 B0@3 B1@1 B0@1",
    ]


def test_1f1b_of_three_ranks() -> None:
    assert written(actions("1f1b", 3, 4), 3) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_zero_bubble_h1_delays_the_weights_of_later_ranks() -> None:
    # Qi et al. 2023, figure 3, top: as many in flight on every rank
    assert written(actions("zb_h1", 2, 4), 2) == [
        "F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3",
        "F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3",
    ]


def test_zero_bubble_h2_fills_the_wait_with_forward_passes() -> None:
    # the same, bottom: 2p - 1 forward passes on the first rank, weights last on the last one
    assert written(actions("zb_h2", 2, 4), 2) == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


def test_dualpipe_runs_from_both_ends() -> None:
    # DualPipe's eight steps for two ranks, written out: middle ranks, no overlap in the first pair
    assert written(actions("dualpipe", 2, 4), 2) == [
        "F0@0 F2@1 F1@0 B2@1 F3@1+ B0@0 B3@1 I1@0 W1@0",
        "F2@0 F0@1 F3@0 B0@1 F1@1+ B2@0 B1@1 I3@0 W3@0",
    ]


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(half=st.integers(1, 4), rounds=st.integers(2, 5))
def test_every_micro_batch_passes_every_piece_once(schedule: str, half: int, rounds: int) -> None:
    pp, m, vpp = 2 * half, 2 * half * rounds, vpp_of(schedule)
    table = actions(schedule, pp, m, vpp)
    wanted = {(batch, piece) for batch in range(m) for piece in range(pp * vpp)}
    for letters in ("F", "BI", "BW"):
        rows = np.isin(table.kind, [KINDS.index(letter) for letter in letters])
        found = list(zip(table.micro_batch[rows].tolist(), table.piece[rows].tolist(), strict=True))
        assert len(found) == len(wanted)
        assert set(found) == wanted
    assert np.isin(KINDS.index("W"), table.kind) == SCHEDULES[schedule].splits_backward


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (6, 24)])
def test_no_schedule_waits_for_itself(schedule: str, pp: int, m: int, play: Any) -> None:
    vpp = vpp_of(schedule)
    count = pp * vpp
    start, end = play(actions(schedule, pp, m, vpp), [1.0] * count, [1.3] * count, [0.7] * count)
    assert (end > start).all()


def test_dualpipes_mirrored_ranks_do_the_same_with_the_other_half() -> None:
    table = actions("dualpipe", 4, 16)
    for rank in range(2):
        one, other = (table.rank == r for r in (rank, 3 - rank))
        assert (table.kind[one] == table.kind[other]).all()
        assert ((table.micro_batch[one] + 8) % 16 == table.micro_batch[other]).all()
        assert (table.piece[one] == table.piece[other]).all()


# --- published bubbles, equal stages -------------------------------------------------------------


def timed(
    play: Any, schedule: str, pp: int, m: int, seconds: tuple[float, float, float]
) -> tuple[float, float]:
    """Bubble of the whole step, and the largest from a rank's first action to its last one.

    Seconds are a forward, input and weight pass of a whole rank and micro-batch.
    """
    vpp = vpp_of(schedule)
    table = actions(schedule, pp, m, vpp)
    count = pp * vpp
    each = ([x * pp / count] * count for x in seconds)
    start, end = play(table, *each)
    busy = m * sum(seconds)
    own = max(end[table.rank == r].max() - start[table.rank == r].min() for r in range(pp))
    return end.max() - busy, own - busy


@pytest.mark.parametrize(("pp", "m"), EVEN)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "looped_bfs"])
def test_narayanans_bubbles(schedule: str, pp: int, m: int, play: Any) -> None:
    # Narayanan et al. 2021, sections 2.2.1 and 2.2.2
    bubble, _ = timed(play, schedule, pp, m, (1.0, 1.25, 0.75))
    assert bubble == pytest.approx((pp - 1) * 3.0 / vpp_of(schedule), rel=1e-12)


@pytest.mark.parametrize(("pp", "m"), EVEN)
@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (1.0, 1.4, 1.0)])
def test_zero_bubble_h1_and_h2(
    pp: int, m: int, seconds: tuple[float, float, float], play: Any
) -> None:
    """Qi et al. 2023, table 2; H2 counts from each rank's own first action to its own last."""
    forward, back, weight = seconds
    h1, _ = timed(play, "zb_h1", pp, m, seconds)
    _, h2 = timed(play, "zb_h2", pp, m, seconds)
    assert h1 == pytest.approx((pp - 1) * (forward + back - weight), rel=1e-12)
    assert h2 == pytest.approx((pp - 1) * (forward + back - 2 * weight), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("pp", "m"), EVEN)
def test_interleaved_zero_bubble_divides_h1_by_its_chunks(pp: int, m: int, play: Any) -> None:
    seconds = (1.0, 1.25, 0.75)
    h1, _ = timed(play, "zb_h1", pp, m, seconds)
    assert timed(play, "interleaved_zb", pp, m, seconds)[0] == pytest.approx(h1 / 2, rel=1e-12)


@pytest.mark.parametrize(("pp", "m"), EVEN)
def test_zb_v_has_no_bubble_where_all_passes_take_as_long(pp: int, m: int, play: Any) -> None:
    # Qi et al. 2023, section 6
    assert timed(play, "zb_v", pp, m, (1.0, 1.0, 1.0))[1] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("pp", "m"), EVEN)
@pytest.mark.parametrize("seconds", [(1.0, 1.25, 0.75), (1.0, 1.4, 1.0), (1.0, 0.7, 0.9)])
def test_idle_time_of_a_rank_of_zb_v_is_what_its_actions_leave(
    pp: int, m: int, seconds: tuple[float, float, float], play: Any
) -> None:
    """Long input passes, long weight passes too, and short ones: each has another longest path."""
    rule_s = SCHEDULES["zb_v"].barrier_free_idle_s
    assert rule_s is not None
    idle_s = float(rule_s(*(np.array(each) for each in seconds)))
    assert idle_s > 0.1
    assert timed(play, "zb_v", pp, m, seconds)[1] == pytest.approx((pp - 1) * idle_s, rel=1e-9)


@pytest.mark.parametrize(("pp", "m"), EVEN)
@pytest.mark.parametrize("weight", [1.0, 0.6, 0.3])
def test_dualpipes_bubble(pp: int, m: int, weight: float, play: Any) -> None:
    """DeepSeek-V3, table 2: (PP / 2 - 1)(F&B + B - 3W), B the whole backward pass.

    PP counts the pieces of the model: a rank of DualPipeV holds two of half the size. The table
    of actions agrees exactly where F = I.
    """
    forward, back = 1.0, 1.0 + weight
    each = (forward + back) + back - 3 * weight
    assert timed(play, "dualpipe", pp, m, (1.0, 1.0, weight))[0] == pytest.approx(
        (pp / 2 - 1) * each
    )
    assert timed(play, "dualpipe_v", pp, m, (1.0, 1.0, weight))[0] == pytest.approx(
        (pp - 1) * each / 2
    )


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_pipedream_never_drains(schedule: str, play: Any) -> None:
    # Narayanan et al. 2019: once full, one micro-batch leaves per pass of the slowest stage
    table = actions(schedule, 4, 40)
    _, end = play(table, [1.0, 1.0, 1.5, 1.0], [1.0, 1.0, 1.5, 1.0], [1.0, 1.0, 1.0, 1.0])
    gone = np.sort(end[(table.rank == 0) & (table.kind == KINDS.index("B"))])
    steady = np.diff(gone)[8:-4]
    assert steady == pytest.approx(np.full(len(steady), 4.0))


# --- published activation counts -----------------------------------------------------------------


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(
    ("schedule", "fullest"),
    [
        ("gpipe", lambda pp: 4 * pp),
        ("1f1b", lambda pp: pp),
        ("zb_h1", lambda pp: pp),  # Qi et al. 2023, section 2.1
        ("zb_h2", lambda pp: 2 * pp - 1),  # section 2.2
        ("zb_v", lambda pp: 2 * pp),  # section 6: p micro-batches, each chunk half a rank
        ("dualpipe", lambda pp: pp + 1),  # DualPipe's README
        ("dualpipe_v", lambda pp: 2 * pp + 1),
        ("pipedream", lambda pp: pp),  # Narayanan et al. 2019, section 3.2
        ("pipedream_2bw", lambda pp: pp),
    ],
)
def test_published_activations(schedule: str, fullest: Any, pp: int) -> None:
    held = in_flight(schedule, pp, 4 * pp, vpp_of(schedule)).sum(axis=1)
    assert held.max() == fullest(pp)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
@given(pp=st.integers(1, 8), m=st.integers(1, 32), vpp=st.integers(2, 4))
def test_stages_count_1f1b_as_its_actions_do(schedule: str, pp: int, m: int, vpp: int) -> None:
    """Fewer micro-batches than ranks are one round, and others are taken in rounds of one size."""
    vpp, m = vpp if schedule == "interleaved" else 1, m - m % max(m // pp, 1)
    table = stages(pp=pp, vpp=vpp, micro_batches=m, layer_kinds=[0] * pp * vpp, kinds=1)
    counted = in_flight(schedule, pp, m, vpp)
    assert (table.in_flight.reshape(pp, vpp) == counted).all()


def laid(schedule: str, pp: int, m: int, layers: int) -> Any:
    code = [WORDS.index(schedule)]
    return stages(
        pp=pp,
        vpp=vpp_of(schedule),
        micro_batches=m,
        layer_kinds=range(layers),
        kinds=layers,
        schedule=code,
    )


@pytest.mark.parametrize("schedule", ["zb_v", "dualpipe_v"])
def test_v_shaped_stages_give_the_last_layers_to_the_first_rank(schedule: str) -> None:
    table = laid(schedule, 2, 8, 8)
    assert table.blocks.argmax(axis=1).tolist() == [0, 6, 2, 4]
    assert table.embedding.tolist() == [1, 0, 0, 0]
    assert table.head.tolist() == [0, 1, 0, 0]


def test_dualpipe_holds_every_stage_twice() -> None:
    table = laid("dualpipe", 4, 16, 8)
    assert table.rank.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert table.blocks.argmax(axis=1).tolist() == [0, 6, 2, 4, 4, 2, 6, 0]
    assert table.embedding.tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
    assert table.head.tolist() == [0, 1, 0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("schedule", "m", "versions"),
    [
        ("pipedream", 1, [4, 3, 2, 1]),  # one version for every micro-batch in flight
        ("pipedream", 8, [2, 2, 2, 1]),  # an update only every eight of them
        ("pipedream_2bw", 4, [2, 2, 2, 2]),
        ("1f1b", 1, [1, 1, 1, 1]),
    ],
)
def test_weight_versions(schedule: str, m: int, versions: list[int]) -> None:
    assert laid(schedule, 4, m, 4).versions.tolist() == versions


def test_pipedreams_activations_do_not_end_with_the_step() -> None:
    assert laid("pipedream", 4, 1, 4).in_flight.tolist() == [4, 3, 2, 1]


# --- numbers for which a schedule does not exist --------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("2f2b", 2, 4, 1), "must be one of 1f1b, interleaved"),
        (("1f1b", 0, 4, 1), "must be positive"),
        (("1f1b", 2, 4, 2), "1f1b needs vpp = 1, got 2"),
        (("interleaved", 2, 4, 1), "interleaved needs vpp >= 2, got 1"),
        (("zb_v", 2, 4, 3), "zb_v needs vpp = 2, got 3"),
        (("interleaved", 4, 14, 2), "14 micro-batches do not divide into 3 equal rounds"),
        (("dualpipe_v", 4, 7, 2), "dualpipe_v needs at least 8 micro-batches, got 7"),
        (("dualpipe", 3, 8, 1), "dualpipe needs even pp and micro-batches, got 3, 8"),
        (("dualpipe", 4, 9, 1), "dualpipe needs even pp and micro-batches, got 4, 9"),
        (("pipedream_2bw", 4, 3, 1), "pipedream_2bw needs at least 4 micro-batches, got 3"),
    ],
)
def test_what_does_not_exist(given: tuple[str, int, int, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        actions(*given)


def test_chunks_of_a_rank() -> None:
    assert [
        SCHEDULES["dualpipe"].chunks(1),
        SCHEDULES["zb_v"].chunks(2),
        SCHEDULES["1f1b"].chunks(1),
    ] == [2, 2, 1]


@pytest.mark.parametrize(
    ("schedule", "pp", "m", "vpp", "alone"),
    [
        ("1f1b", 1, 4, 1, 1.0),
        ("1f1b", 8, 32, 1, 1.0),
        ("interleaved", 4, 16, 3, 9 / 3),  # (v - 1) pp + 1 chunk passes
        ("gpipe", 4, 16, 1, 16.0),
        ("looped_bfs", 4, 16, 2, 16.0),
        ("zb_h1", 4, 16, 1, 1.0),
        ("pipedream", 4, 16, 1, 0.0),
    ],
)
def test_passes_without_another_beside_them(
    schedule: str, pp: int, m: int, vpp: int, alone: float
) -> None:
    assert unpaired(schedule, pp, m, vpp) == alone


def test_dualpipe_pairs_what_its_table_joins() -> None:
    """Every forward pass that is joined has a backward pass of another micro-batch after it."""
    table = actions("dualpipe_v", 4, 16, 2)
    joined = np.flatnonzero(table.with_next)
    assert (table.kind[joined] == FORWARD).all() and (table.kind[joined + 1] != FORWARD).all()
    of_rank = [
        int(((table.rank == r) & (table.kind == FORWARD) & ~table.with_next).sum())
        for r in range(4)
    ]
    assert unpaired("dualpipe_v", 4, 16, 2) == min(of_rank) / 2
    assert unpaired("dualpipe_v", 4, 64, 2) == unpaired("dualpipe_v", 4, 16, 2)
