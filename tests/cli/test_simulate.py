"""`foreshard simulate`: documents, files, screens, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator import plan
from simulator._version import __version__
from simulator.cli.main import app
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.terms import HIDDEN, TERMS
from simulator.events.sharing.contended import Contended, Network
from simulator.events.step.streams import STREAMS
from simulator.questions.simulate.screen import _network

RUNNER = CliRunner(env={"COLUMNS": "160"})
NAMES = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "16"]
LAYOUT = ["--set", "layout.tp=2", "--set", "layout.pp=4", "--set", "training.global_batch=32"]
CASE = [*NAMES, *LAYOUT]
STEP = [
    "layout", "searched", "step_time_s", "undisturbed_s", "closed_form_s", "terms_s",
    "closed_form_terms_s",
    "hidden_s", "critical_share", "pacing_rank", "ranks", "verdict", "links", "network",
    "jitter", "loading", "sharing", "groups", "tasks", "deadline_chance", "budget_chance",
    "build_seconds", "run_seconds", "caveats",
]  # fmt: skip


def document(*more: str, names: list[str] | None = None) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    result = RUNNER.invoke(app, ["simulate", *(names or CASE), *more, "--json"])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    found: dict[str, Any] = json.loads(result.stdout, parse_constant=refuse)
    return found


def refused(*more: str) -> str:
    result = RUNNER.invoke(app, ["simulate", *CASE, *more])
    assert (result.exit_code, result.stdout) == (2, "")
    assert isinstance(result.exception, SystemExit)
    return result.stderr


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return document()


def test_without_a_layout_the_best_is_searched_and_said() -> None:
    scenario = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]
    few = ["--set", "training.global_batch=32", "--set", "training.sequence_length=4096"]
    done = RUNNER.invoke(app, ["simulate", *scenario, *few, "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    best = plan(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, global_batch=32,
                sequence_length=4096)  # fmt: skip
    assert found["searched"] == best.found.layouts > 100
    assert {name: found["layout"][name] for name in ("tp", "pp", "dp", "sharding")} == {
        name: best.layout[name] for name in ("tp", "pp", "dp", "sharding")
    }
    assert found["closed_form_s"] == pytest.approx(best.step_time_s)
    screen = RUNNER.invoke(app, ["simulate", *scenario, *few]).stdout
    assert "no layout was given: the best of" in screen


def test_keys_are_frozen(plain: dict[str, Any]) -> None:
    assert list(plain) == [
        *("schema", "version", "command", "scenario"),
        *("assumed_software", "assumed_training", "idle_fields", "elsewhere", "workload"),
        *STEP,
    ]
    head = (plain["schema"], plain["version"], plain["command"])
    assert head == (1, __version__, "simulate")
    names = [term.name for term in TERMS]
    for key in ("terms_s", "closed_form_terms_s", "critical_share"):
        assert list(plain[key]) == names
    assert list(plain["hidden_s"]) == list(HIDDEN)
    for i, rank in enumerate(plain["ranks"]):
        assert list(rank) == ["rank", "gpus", "busy_s", "exposed_s", "idle_s", "memory_peak"]
        assert rank["rank"] == i
        for key in ("busy_s", "exposed_s", "idle_s"):
            assert list(rank[key]) == list(STREAMS)
        assert list(rank["memory_peak"]) == ["time_s", "total_bytes", "memory_bytes"]
        assert list(rank["memory_peak"]["memory_bytes"]) == list(MEMORY_KINDS)


def test_sound_links_are_null_and_worn_ones_are_not(plain: dict[str, Any]) -> None:
    """Server 1 holds stages 2 and 3: half of one of its adapters slows the sends that arrive."""
    assert plain["network"] is None
    worn = document("--worn", "adapter-down  1.3 = 0.5")["network"]
    assert list(worn) == ["contention", "worn", "beside", "slowdown", "slowdown_inside", "links"]
    assert (worn["contention"], worn["worn"]) == (False, {"adapter-down 1.3": 0.5})
    assert worn["slowdown"] == pytest.approx({"pp": 2.0})
    for use in worn["links"].values():
        assert list(use) == ["link", "group", "utilisation"]
    assert worn["links"]["adapter-down"]["link"] == "adapter-down 1.3"


@pytest.mark.evidence
def test_contention_of_sound_links_changes_nothing(plain: dict[str, Any]) -> None:
    """Software whose sends, gathers and reductions wait for the passes: no kind meets another, and
    no call holds compute units beside a pass."""
    assert plain["sharing"] is None
    old = ("--software", "megatron-lm-2022")
    plain, found = document(*old), document("--contention", *old)
    assert found["network"]["contention"] and found["network"]["slowdown"] == {"pp": 1.0}
    assert found["step_time_s"] == plain["step_time_s"]
    assert found["terms_s"] == plain["terms_s"]
    assert set(found["sharing"]["lost_s"].values()) == {0.0}


def test_kinds_that_meet_on_links_are_charged() -> None:
    """Interleaved chunks send beside compute, forward and backward: where both arrive at once they
    share the adapter. What the step grows by is named term by term, and links how full they are."""
    case = ["--model", "llama-3.1-70b", "--cluster", "dgx-h100", "--gpus", "64"]
    for field in ("layout.tp=4", "layout.pp=4", "layout.vpp=4", "training.global_batch=64"):
        case += ["--set", field]
    plain, found = (document(*more, names=case) for more in ((), ("--contention",)))
    sharing = found["sharing"]
    assert list(sharing) == ["plain_s", "alone_s", "lost_s", "links"]
    assert sharing["plain_s"] == plain["step_time_s"]
    # calls hold units when they run, which is seldom beside a first pass, as the closed form has it
    assert sharing["alone_s"] == pytest.approx(plain["step_time_s"], rel=0.015)
    lost_s = found["step_time_s"] - sharing["alone_s"]
    assert lost_s > 0.0
    assert sum(sharing["lost_s"].values()) == pytest.approx(lost_s, rel=1e-9)
    assert sum(found["terms_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-12)
    assert {"gpu-up", "adapter-up", "adapter-down"} <= set(sharing["links"])
    for use in sharing["links"].values():
        assert list(use) == ["link", "utilisation"] and 0.0 < use["utilisation"] <= 1.0
    shown = RUNNER.invoke(app, ["simulate", *case, "--contention"]).stdout
    part = shown.split("Traffic that meets on links")[1]
    assert "calls slow compute when they run" in part
    assert "with links of its own for every kind" in part and "pipeline sends" in part


def test_another_job_on_the_fabric(tmp_path: Path) -> None:
    """40 servers and 40 others alternate under leaves of 32, which are wide enough for both."""
    path = tmp_path / "other.toml"
    path.write_text(
        '[model]\nname = "llama-3.1-8b"\n'
        "[training]\nsequence_length = 4096\nglobal_batch = 320\n"
        '[cluster]\nname = "dgx-h100"\ngpus = 320\nsoftware = "megatron-lm-2022"\n'
    )
    names = [str(path), "--set", "layout.tp=8"]
    plain = document(names=names)
    found = document("--beside", str(path), names=names)
    assert found["network"]["contention"] and 0.5 < found["network"]["beside"]["leaf-up"] < 1.0
    assert found["step_time_s"] == pytest.approx(plain["step_time_s"], rel=1e-12)
    shown = RUNNER.invoke(app, ["simulate", *names, "--beside", str(path)]).stdout
    assert "other jobs leave at least: leaf-up" in shown
    assert "no such file" in refused("--beside", str(tmp_path / "none.toml"))
    path.write_text(path.read_text().replace("dgx-h100", "dgx-a100"))
    assert "beside[0]: must be on the same fabric, dgx-h100" in refused("--beside", str(path))


def test_the_screen_names_what_worn_links_slow() -> None:
    """GPUs 4 to 7 send to 8 to 11 over the adapters of the rails where those are, 0 to 3."""
    arguments = ["simulate", *CASE, "--worn", "adapter-up 0.2=0.25", "--contention"]
    part = RUNNER.invoke(app, arguments).stdout.split("Groups on the links of the cluster")[1]
    assert "bytes over adapters take longer: pp x 4.000" in part
    assert "adapter-up 0.2 100.0 % (pp)" in part


def test_every_kind_of_groups_is_slower_or_as_fast_on_the_screen() -> None:
    lines = _network(
        Contended(
            given=Network(),
            slowdown={"tp": 1.0, "dp": 1.02, "ep": 1.5},
            slowdown_inside={"tp": 1.04},
            links={},
            stages=(),
            beside={"leaf": 0.25},
        )
    )
    assert lines == [
        "other jobs leave at least: leaf 25.0 %",
        "bytes over adapters take longer: dp x 1.020, ep x 1.500",
        "bytes over adapters take as long as in the analytical model: tp",
        "bytes over links inside take longer: tp x 1.040",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("adapter-up 0.4", "--worn: must be LINK=SHARE ('adapter-up 3.1=0.5'), got"),
        ("=0.5", "--worn: must be LINK=SHARE"),
        ("adapter-up 0.4=half", "must be the share of its capacity that is left, 0 to 1"),
        ("adapter-up 0.4=2", "0 to 1, got 2.0 (nearest: 1 (sound))"),
        ("adapter-up 2.4=0.5", "(nearest: 'adapter-up 1.4')"),
        ("adaptor-up 0.4=0.5", "(did you mean 'adapter-up'?)"),
    ],
)
def test_links_that_cannot_be(text: str, said: str) -> None:
    assert said in refused("--worn", text)


def test_a_link_is_worn_once() -> None:
    said = refused("--worn", "adapter-up 0.4=0.5", "--worn", "adapter-up 0.4=0.7")
    assert "adapter-up 0.4: must be given once" in said


def test_numbers_add_up(plain: dict[str, Any]) -> None:
    """4 stages of 4 GPUs; terms and shares are whole; a stream is busy or idle; memory as kinds."""
    step_s = plain["step_time_s"]
    assert sum(plain["terms_s"].values()) == pytest.approx(step_s, rel=1e-9)
    assert sum(plain["closed_form_terms_s"].values()) == pytest.approx(plain["closed_form_s"])
    assert sum(plain["critical_share"].values()) == pytest.approx(1.0)
    assert [rank["gpus"] for rank in plain["ranks"]] == [4, 4, 4, 4]
    for rank in plain["ranks"]:
        for busy, idle in zip(rank["busy_s"].values(), rank["idle_s"].values(), strict=True):
            assert busy + idle == pytest.approx(step_s, rel=1e-9)
        peak = rank["memory_peak"]
        assert sum(peak["memory_bytes"].values()) == pytest.approx(peak["total_bytes"])
        assert 0.0 <= peak["time_s"] <= step_s


def test_it_is_the_layout_that_predict_prices(plain: dict[str, Any]) -> None:
    result = RUNNER.invoke(app, ["predict", *CASE, "--json"])
    (layout,) = json.loads(result.stdout)["layouts"]
    assert plain["layout"] == layout["layout"]
    assert plain["closed_form_s"] == layout["step_time_s"]
    assert plain["step_time_s"] == pytest.approx(layout["step_time_s"], rel=0.01)
    fullest = max(rank["memory_peak"]["total_bytes"] for rank in plain["ranks"])
    assert fullest == pytest.approx(layout["memory_total_bytes"], rel=1e-9)


def test_the_screen_says_what_was_played(plain: dict[str, Any]) -> None:
    result = RUNNER.invoke(app, ["simulate", *CASE])
    assert (result.exit_code, result.stderr) == (0, "")
    for words in (
        "played",
        "by the analytical model",
        "sum = step time",
        "streams of rank",
        "Critical path",
        "memory of rank",
        "Links",
    ):
        assert words in result.stdout
    rows = result.stdout.split("memory of rank")[1].splitlines()[1:5]
    assert [row.split()[:2] for row in rows] == [[str(rank), "4"] for rank in range(4)]


def test_a_slow_gpu_costs_what_it_takes_longer(plain: dict[str, Any]) -> None:
    """Stage 3 of replica 1 takes a quarter longer: it is unfolded, and paces the step."""
    slow = document("--deviation", "stage=3, replica=1, compute=1.25")
    assert slow["undisturbed_s"] == plain["step_time_s"] and plain["undisturbed_s"] is None
    assert [rank["gpus"] for rank in slow["ranks"]] == [2] * 8
    assert slow["pacing_rank"] == 7
    assert slow["terms_s"]["gemm"] == pytest.approx(1.25 * plain["terms_s"]["gemm"], rel=1e-9)
    both = document(
        "--deviation", "stage=3,replica=1,compute=1.25", "--deviation", "stage=0,compute=1.5"
    )
    assert both["step_time_s"] > slow["step_time_s"] > plain["step_time_s"]


def test_servers_of_another_kind(plain: dict[str, Any]) -> None:
    mixed = document("--deviation", "stage=1,cluster=dgx-a100")
    assert mixed["pacing_rank"] == 1 and mixed["step_time_s"] > 1.5 * plain["step_time_s"]


def test_a_schedule_of_the_users_own(tmp_path: Path, plain: dict[str, Any]) -> None:
    """All forward passes first: as much work, and more memory than one forward, one backward."""
    batches = range(16)
    rows = [
        ",".join([f"{stage}F{b}" for b in batches] + [f"{stage}B{b}" for b in batches])
        for stage in range(4)
    ]
    path = tmp_path / "gpipe.csv"
    path.write_text("\n".join(rows) + "\n")
    own = document("--actions", str(path))
    assert own["terms_s"]["gemm"] == pytest.approx(plain["terms_s"]["gemm"], rel=1e-9)
    peaks = [
        found["ranks"][3]["memory_peak"]["memory_bytes"]["activations"] for found in (plain, own)
    ]
    assert peaks[1] > 10 * peaks[0]


@pytest.mark.parametrize("vpp", [1, 2])
def test_the_schedule_is_written_as_a_table_to_begin_with(tmp_path: Path, vpp: int) -> None:
    """Given back unchanged it is played as it was; a pass put off on the last rank costs time."""
    path = tmp_path / "own.csv"
    case = ("--set", f"layout.vpp={vpp}")
    result = RUNNER.invoke(app, ["simulate", *CASE, *case, "--json", "--write-actions", str(path)])
    assert (result.exit_code, result.stderr) == (0, f"Actions: {path}\n")
    again = document(*case, "--actions", str(path))
    assert again["terms_s"] == json.loads(result.stdout)["terms_s"]
    rows = path.read_text().splitlines()
    assert len(rows) == 4
    if vpp == 1:  # one forward, one backward; then the first backward pass waits for another
        assert rows[3].startswith("3F0,3B0,3F1,3B1,")
        path.write_text("\n".join([*rows[:3], rows[3].replace("3B0,3F1", "3F1,3B0", 1)]) + "\n")
        assert document("--actions", str(path))["step_time_s"] > again["step_time_s"]


@pytest.mark.parametrize("more", [(), ("--contention", "--jitter", "0.02")])
def test_a_table_with_sends_of_its_own(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Two stages, one forward, one backward: idle time behind a listed receive is charged, too."""
    path = tmp_path / "own.csv"
    path.write_text(
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
    )
    case = [*NAMES, "--set", "layout.tp=4", "--set", "layout.pp=2"]
    case += ["--set", "training.global_batch=4"]
    found = document("--actions", str(path), *more, names=case)
    assert sum(found["terms_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-12)
    assert sum(found["critical_share"].values()) == pytest.approx(1.0)
    if not more:
        assert found["step_time_s"] == pytest.approx(document(names=case)["step_time_s"], rel=1e-9)


def test_files_are_written(tmp_path: Path) -> None:
    trace, picture = tmp_path / "deep" / "t.json", tmp_path / "p.png"
    result = RUNNER.invoke(
        app, ["simulate", *CASE, "--json", "--trace", str(trace), "--picture", str(picture)]
    )
    assert result.exit_code == 0, result.output
    assert result.stderr == f"Trace: {trace}\nPicture: {picture}\n"
    written = json.loads(trace.read_text())
    assert written["otherData"]["step_time_s"] == json.loads(result.stdout)["step_time_s"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stag=3", "--deviation: unknown field 'stag' (did you mean 'stage'?)"),
        ("stage=1.6", "--deviation: stage: must be a whole number, got '1.6' (nearest: 2)"),
        ("stage=4", "deviations[0].stage: must be from 0 to 3, got 4 (nearest: 3)"),
        ("replica=-1", "deviations[0].replica: must be from 0 to 1, got -1 (nearest: 0)"),
        ("compute=fast", "--deviation: compute: must be a number, got 'fast'"),
        ("compute", "--deviation: must be FIELD=VALUE,... (stage=3,compute=1.2), got 'compute'"),
        ("stage=1,stage=2", "--deviation: stage: must be given once"),
        ("compute=nan", "compute: must be above 0"),
        ("cluster=dgx-a10", "unknown cluster 'dgx-a10' (did you mean 'a10-pcie'?)"),
    ],
)
def test_deviations_that_cannot_be(text: str, said: str) -> None:
    assert said in refused("--deviation", text)


def test_nothing_is_half_written(tmp_path: Path) -> None:
    """A good trace beside a picture that has nowhere to go; and names that no file can have."""
    (tmp_path / "file").write_text("")
    trace = tmp_path / "t.json"
    said = refused("--trace", str(trace), "--picture", str(tmp_path / "file" / "p.png"))
    assert "cannot be written" in said
    for option, name, ending in (
        ("picture", "p.jpg", ".png or .svg"),
        ("write-actions", "", ".csv"),
    ):
        said = refused(f"--{option}", str(tmp_path / name))
        assert f"--{option}: must be a file that ends in {ending}, got" in said
    both = ("--actions", "own.csv", "--write-actions", "own.csv")
    assert "--write-actions: must come without --actions" in refused(*both)
    assert "--trace: must end in .json or .json.gz" in refused("--trace", str(tmp_path / "t"))
    refused("--trace", str(trace), "--deviation", "stage=9")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_table_of_another_layout(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("0F0,0B0\n1F0,1B0\n")
    assert f"{path}: must have the layout's 4 ranks (pp), got 2" in refused("--actions", str(path))
    assert "no such file" in refused("--actions", str(tmp_path / "none.csv"))


def test_a_table_whose_ranks_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("".join(f"{rank}B0,{rank}F0\n" for rank in range(4)))
    assert f"{path}: deadlock: rank 3: B0 of piece 3 waits for" in refused("--actions", str(path))


def test_durations_that_vary(plain: dict[str, Any]) -> None:
    """4 replicas and 2 ranks a stage: the mean of the slowest is above the mean of one."""
    assert plain["jitter"] is None
    seeds = ((), ("--seed", "0"), ("--seed", "7"))
    found, again, other = (document("--jitter", "0.03", *seed) for seed in seeds)
    jitter = found["jitter"]
    assert list(jitter) == ["spread", "seed", "steady_s", "lost_s"]
    assert (jitter["spread"], jitter["seed"]) == (0.03, 0)
    assert jitter["steady_s"] == plain["step_time_s"] < found["step_time_s"]
    assert found["terms_s"] == again["terms_s"] != other["terms_s"]
    lost_s = found["step_time_s"] - plain["step_time_s"]
    assert sum(jitter["lost_s"].values()) == pytest.approx(lost_s, rel=1e-9)
    shown = RUNNER.invoke(app, ["simulate", *CASE, "--jitter", "0.03"]).stdout
    part = shown.split("Durations that vary")[1]
    assert "if none varied by 3.0 % (seed 0)" in part and "GEMMs" in part


def test_no_jitter_is_the_step_itself(plain: dict[str, Any]) -> None:
    assert document("--jitter", "0")["terms_s"] == plain["terms_s"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--jitter", "-0.1"), "simulate: jitter: must be finite and not negative"),
        (("--jitter", "nan"), "simulate: jitter: must be finite"),
        (("--jitter", "0.1", "--seed", "-2"), "seed: must not be negative, got -2 (nearest: 0)"),
        (("--seed", "3"), "--seed: must come with --jitter, got 3"),
    ],
)
def test_jitter_that_cannot_be(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*arguments)


def test_a_users_profile_names_a_schedule_that_no_shipped_one_has(tmp_path: Path) -> None:
    """V-Half and V-Min on four ranks hold 6 and 4 chunk passes where 1F1B holds 4 of two chunks."""
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "megatron-core"\n[supports]\nschedules = ["1f1b", "v_half", "v_min"]\n')
    taken = ["--set", f"cluster.software={mine}"]
    words = ("1f1b", "v_half", "v_min")
    plain, half, least = (document(*taken, "--set", f"layout.schedule={word}") for word in words)
    assert [made["layout"]["vpp"] for made in (plain, half, least)] == [1, 2, 2]
    for made in (half, least):
        assert made["step_time_s"] == pytest.approx(made["closed_form_s"], rel=0.005)
    idle_s = [
        made["terms_s"]["bubble_warmup"] + made["terms_s"]["bubble_drain"] for made in (plain, half)
    ]
    assert idle_s[1] == pytest.approx(idle_s[0] / 2, rel=0.1)
    kept = [
        made["ranks"][0]["memory_peak"]["memory_bytes"]["activations"]
        for made in (plain, half, least)
    ]
    assert kept[1:] == pytest.approx([kept[0] * 6 / 8, kept[0] * 4 / 8], rel=1e-12)
    said = "layout.schedule: must be one of 1f1b, interleaved in megatron-core, got 'v_half'"
    assert said in refused("--set", "layout.schedule=v_half")


def test_a_step_of_more_passes_than_memory_has_room_for() -> None:
    told = refused("--set", "training.global_batch=100000000")
    assert told.startswith("simulate: training.global_batch: must make at most 8388608 passes")
