"""The explorer answers this machine alone: questions, downloads, refusals, bounded memory."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import anyio
import httpx
from starlette.requests import Request
from starlette.testclient import TestClient
from typer.testing import CliRunner

import simulator.explorer.web as web
from simulator.api import predict
from simulator.cli.main import app
from simulator.explorer.answering import Answers, moved, repriced
from simulator.explorer.asked import question_of, scenario_of_question
from simulator.explorer.replying import Worker, refusal
from simulator.explorer.web import _Searches, application
from simulator.layout.layouts import Layouts
from simulator.planner.plan import Plan, plan
from simulator.scenario import load_scenario, make_scenario
from simulator.search.in_threads import Stopped, stoppable
from simulator.workload import presets
from tests.explorer.load import QUESTION, asked, clicked, served

needs_uvicorn = pytest.mark.skipif(find_spec("uvicorn") is None, reason="serve needs uvicorn")
ZOO = Path(presets.__file__).parent / "zoo"
ASSETS = Path(web.__file__).parent / "assets"


def client(**more: Any) -> TestClient:
    app = application(clock=more.pop("clock", time.monotonic), **more)
    return TestClient(app, base_url="http://127.0.0.1:8021", client=("127.0.0.1", 1))


def test_a_pinned_layout_is_answered_as_predict_does() -> None:
    found = client().get("/api/now", params=asked(pins={"tp": 2, "micro_batch": 4})).json()
    one = predict(
        model="gpt2-small", cluster="dgx-a100", gpus=8, global_batch=64, sequence_length=1024,
        tokens=1e10, tp=2, micro_batch=4,
    )  # fmt: skip
    assert found["step_time_s"] == one.step_time_s
    assert found["layout"]["tp"] == 2
    assert (found["verdict"], found["searched"]) == ("FITS", False)
    assert sum(found["terms_s"].values()) == pytest.approx(found["step_time_s"])


def test_a_slider_changes_the_verdict_and_too_much_is_oom() -> None:
    pages = client()
    near = json.dumps({"tp": 2, "micro_batch": 4, "dp": 4})
    one, two = (
        pages.get("/api/now", params={**asked(gpus=gpus), "near": near}).json() for gpus in (8, 16)
    )
    assert two["days"] < one["days"]
    assert one["layout"]["tp"] == two["layout"]["tp"] == 2  # the rest of the page's layout
    large = {"model": "llama-3.1-405b", "pins": {"tp": 8}, "tokens": 1e12}
    assert pages.get("/api/now", params=asked(**large)).json()["verdict"] == "OOM"


def test_a_price_of_ones_own_is_that_of_the_cluster_alone() -> None:
    pages = client()
    given = {"usd_per_gpu_hour": 4.0, "beside": "dgx-h100", "deadline_days": 30}
    found = pages.get("/api/search", params=asked(**given)).json()
    assert found["usd"] == pytest.approx(4.0 * found["gpu_hours"])
    assert (found["price"]["base"], found["plain"][:2]) == ("typed", "DP")
    sizes = pages.get("/api/sizes", params=asked(**given)).json()
    assert "very likely before your 30-day deadline" in sizes["said"][0]
    notes = re.findall(r"<title>(.*?)</title>", sizes["picture"])
    assert {note.split(";")[0].split()[1] for note in notes} == {"A100", "H100"}
    assert all("4.00 USD" in note for note in notes if " A100 " in note.split(";")[0])
    assert all("2.99 USD" in note for note in notes if " H100" in note.split(";")[0])
    wrong = pages.get("/api/search", params=asked(beside="nowhere"))
    assert wrong.status_code == 422 and "beside" in wrong.json()["problems"][0]


def test_a_config_of_ones_own_is_trained_as_the_same_of_the_zoo() -> None:
    pages = client()
    config = json.loads((ZOO / "gpt2-small.json").read_text())
    listed, own = (
        pages.get("/api/now", params=asked(**more)).json()
        for more in ({}, {"model": "own", "config": config})
    )
    assert own["step_time_s"] == listed["step_time_s"]
    wrong = pages.get("/api/now", params=asked(model="own", config={"model_type": "no-such"}))
    assert wrong.status_code == 422 and "model_type" in wrong.json()["problems"][0]
    assert pages.get("/api/now", params=asked(model="own")).status_code == 422


@pytest.mark.parametrize("name", ["llama-3.1-70b", "moe-1t-10000", "llama-3.1-8b-lora"])
def test_the_text_of_a_scenario_asks_what_its_file_does(name: str) -> None:
    path = Path(__file__).parents[2] / "examples" / f"{name}.toml"
    reply = client().get("/api/scenario", params={"q": path.read_text()})
    page, file = scenario_of_question(question_of(json.dumps(reply.json()))), load_scenario(path)
    for part in ("cluster", "software", "pinned", "goal", "run", "allow_tight"):
        assert getattr(page, part) == getattr(file, part), part
    assert page.workload.recipe == file.workload.recipe
    assert page.workload.architecture.parameters == file.workload.architecture.parameters


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ('name = "/etc/passwd"', "unknown model"),
        ('name = "config.json"', "unknown model"),
        ('model_type = "no-such"', "model_type"),
        ('name = "gpt2-small"\ntrace_tokens = 64', "trace_tokens"),
        ('name = "gpt2-small"\n[run]\nprofile = "../x"', "must name no file"),
        ('name = "gpt2-small"\n[economics]\npage = "x.toml"', "must name no file"),
        ('name = "gpt2-small"\n[rl]\nanswer_file = "x"', "this page takes the sections"),
        ("name = ", "not valid TOML"),
        ('name = "gpt2-small" # ' + "x" * 17_000, "longer than 16384"),
    ],
)
def test_a_scenario_of_ones_own_opens_no_file(changed: str, said: str) -> None:
    text = f"""[training]
    sequence_length = 1024
    global_batch = 64
    [cluster]
    name = "dgx-a100"
    gpus = 8
    [model]
    {changed}"""
    reply = client().get("/api/scenario", params={"q": text})
    assert reply.status_code == 422
    assert said in " ".join(reply.json()["problems"])
    more = {"more": {"training": {"precision": "a/b"}}}
    assert client().get("/api/now", params=asked(**more)).status_code == 422


def test_style_sheet_and_choices_name_tokens_and_prices() -> None:
    pages = client()
    assert "--mark: #0b5cad; " in pages.get("/explorer.css").text
    (box,) = [c for c in pages.get("/api/choices").json()["machines"] if c["name"] == "dgx-h100"]
    assert (box["chip"], box["price"]) == ("H100", "2.99 USD")
    assert box["sizes"] == [2**power for power in range(15)]


def test_layouts_of_the_last_answer_are_priced_again_at_once() -> None:
    pages = client()
    best = pages.get("/api/search", params=asked()).json()
    last = best["key"]
    moved = pages.get("/api/now", params={**asked(gpus=16), "last": last}).json()
    assert (moved["searched"], moved["verdict"]) == (False, "FITS")
    given = {k: v for k, v in moved["layout"].items() if k not in ("dp", "global_batch")}
    one = predict(
        model="gpt2-small", cluster="dgx-a100", gpus=16, global_batch=64, sequence_length=1024,
        tokens=1e10, **given,
    )  # fmt: skip
    assert moved["step_time_s"] == one.step_time_s
    assert moved["days"] < best["days"]
    assert moved["pareto"]
    assert moved["layouts"]
    pinned = asked(pins={"tp": 2, "recompute": "full"})
    moved = pages.get("/api/now", params={**pinned, "last": last}).json()["layout"]
    assert (moved["tp"], moved["dp"], moved["recompute"]) == (2, 4, "full")
    none = {"model": "llama-3.1-405b", "pins": {"tp": 1, "pp": 1}}
    answer = pages.get("/api/now", params={**asked(**none), "last": last}).json()
    assert not answer["searched"]
    assert answer.get("verdict", "OOM") == "OOM"


def test_an_unmoved_question_keeps_its_best_layout() -> None:
    answers = Answers()
    found = answers.plan_of(question_of(asked()["q"]))
    assert isinstance(found, Plan)
    again = repriced(found, found.scenario)
    assert again is not None
    assert again.estimate.layouts.describe() == found.estimate.layouts.describe()
    assert again.step_time_s == found.step_time_s
    assert (again.estimate.layouts.world == 8).all()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({}, "not valid JSON"),
        ({"q": "[" * 3000}, "nested too deeply"),
        ({"q": "x" * 20_000}, "longer than 16384"),
        (asked(model="/etc/passwd"), "unknown model"),
        (asked(model="../zoo/gpt2-small.json"), "unknown model"),
        (asked(cluster="dgx-h10"), "did you mean 'dgx-h100'"),
        (asked(gpus=-1), "gpus"),
        (asked(pins={"tp": 5}), "must divide"),
        (asked(invented=1), "unknown field"),
    ],
)
def test_wrong_questions_are_told(query: dict[str, str], said: str) -> None:
    reply = client().get("/api/now", params=query)
    assert reply.status_code == 422
    assert any(said in text for text in reply.json()["problems"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8021"}, 421),
        ({"host": "localhost:8021"}, 200),
        ({"origin": "http://127.0.0.1:8021"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"content-length": "10"}, 413),
    ],
)
def test_other_hosts_and_origins_are_refused(headers: dict[str, str], status: int) -> None:
    reply = client().get("/", headers=headers)
    assert reply.status_code == status
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_other_ways_and_long_targets_are_refused() -> None:
    assert client().post("/api/now").status_code == 405
    assert client().get("/explorer.py").status_code == 404
    assert client().get("/%2e%2e/web.py").status_code == 404
    assert client().get("/", params={"q": "x" * 50_000}).status_code == 413


def test_the_rate_is_limited_and_comes_back() -> None:
    now = [0.0]
    pages = client(clock=lambda: now[0])
    statuses = [pages.get("/api/choices").status_code for _ in range(70)]
    assert statuses.count(429) == 10
    now[0] = 1.0
    assert pages.get("/explorer.css").status_code == 200


def test_twenty_more_a_second_and_never_more_than_sixty_at_once() -> None:
    """By a clock that has run for a day: 60 at once, 10 after half a second, 60 after a minute."""
    now = [86_400.0]
    pages = client(clock=lambda: now[0])

    def served_at_once() -> int:
        return [pages.get("/api/choices").status_code for _ in range(75)].count(200)

    assert served_at_once() == 60
    now[0] += 0.5
    assert served_at_once() == 10
    now[0] += 60.0
    assert served_at_once() == 60
    refused = pages.get("/api/choices")
    assert (refused.status_code, refused.text) == (429, "too many requests: wait a second")
    other = pages.get("/api/choices", params={"page": "another"})
    assert other.status_code == 200  # a page of its own has room of its own


def test_a_length_may_be_said_to_be_nothing_and_a_target_as_long_as_a_question() -> None:
    pages = client()
    assert pages.get("/", headers={"content-length": "0"}).status_code == 200
    for length, status in ((3 * web.LONGEST - 2, 200), (3 * web.LONGEST - 1, 413)):
        assert pages.get("/", params={"q": "x" * (length - 1)}).status_code == status


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_inline() -> None:
    text = "".join(path.read_text() for path in ASSETS.iterdir())
    page = (ASSETS / "explorer.html").read_text()
    assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\son\w+=|style=|<style|<script>|javascript:", page)
    assert "innerHTML" not in text
    assert "eval(" not in text


@pytest.mark.evidence
def test_the_search_its_front_and_the_downloads() -> None:
    pages = client()
    found = pages.get("/api/search", params=asked()).json()
    assert found["searched"]
    assert found["layouts"][0]["step_time_s"] == found["step_time_s"]
    assert found["pareto"]
    assert pages.get("/api/now", params=asked()).json()["searched"]  # remembered
    reply = pages.get("/scenario.toml", params=asked(pins={"tp": 2}))
    assert "attachment" in reply.headers["content-disposition"]
    document = tomllib.loads(reply.text)
    assert document["layout"] == {"tp": 2}
    assert document["training"]["tokens"] == 1e10
    assert "torchrun" in pages.get("/launch.sh", params=asked()).text
    assert "<html" in pages.get("/report.html", params=asked()).text.lower()
    otherwise = pages.get("/api/otherwise", params=asked()).json()
    assert otherwise["step_time_s"] == found["step_time_s"]
    changes = [one["change"] for one in otherwise["others"]]
    assert "training.moment_dtype = bf16" in changes
    assert not any("fp8" in change for change in changes)  # an A100 has none
    none = {"model": "llama-3.1-405b", "gpus": 8}
    assert "reason" in pages.get("/api/search", params=asked(**none)).json()


@pytest.mark.evidence
def test_hundreds_of_questions_leave_memory_flat() -> None:
    answers = Answers()
    pages = client(answers=answers, clock=iter(range(10**6)).__next__)

    def click(times: int, first: int) -> float:
        for i in range(first, first + times):
            query = asked(global_batch=8 * (1 + i), pins={"tp": 1, "pp": 1, "cp": 1})
            path = "/api/search" if i % 4 == 0 else "/api/now"
            assert pages.get(path, params=query).status_code == 200
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    warm = click(120, 0)
    later = click(240, 120)
    assert len(answers.plans) <= 24
    assert later - warm < 60  # MiB


@needs_uvicorn
@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "a" * 300, "x\0y"])
def test_an_address_that_is_not_here_is_one_line(host: str) -> None:
    done = CliRunner().invoke(app, ["serve", "--host", host])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("serve: --host, --port: must be a free port")
    assert done.stderr.count("\n") == 1


@needs_uvicorn
def test_a_used_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"127.0.0.1:{port} (Address already in use)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_search_says_what_is_tight_and_what_is_assumed() -> None:
    pages = client()
    large = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "sequence_length": 8192}
    never, allowed = (
        pages.get("/api/search", params=asked(**large, tight=word)).json()
        for word in ("never", "allowed")
    )
    assert never["verdict"] == "FITS" and never["memory_p90_bytes"] <= never["usable_bytes"]
    assert allowed["step_time_s"] <= never["step_time_s"]
    if allowed["verdict"] == "TIGHT":
        assert "if a trial run shows that it fits" in never["margin"]
    assert all(row["step_time_s"] >= never["step_time_s"] for row in never["pareto"])
    assert never["assumptions"] and allowed["assumptions"]


def test_a_field_on_which_nothing_hangs_is_named_on_the_page() -> None:
    """An hour's 1.80 under [economics.rent], without a basis, is not the price that is paid."""
    rent = {"economics": {"rent": {"on_demand_usd_per_gpu_hour": 1.8}}}
    pages = client()
    plain, given = (
        pages.get("/api/now", params=asked(**more)).json() for more in ({}, {"more": rent})
    )
    assert given["usd"] == plain["usd"] and plain["idle"] == ""
    assert "economics.rent.on_demand_usd_per_gpu_hour" in given["idle"]


# --- many clients ---------------------------------------------------------------------------------

LARGE = {
    "model": "deepseek-v3", "cluster": "dgx-h100", "gpus": 2048, "global_batch": 15360,
    "sequence_length": 4096, "tokens": 1e12,
}  # fmt: skip


def test_a_question_of_too_many_layouts_is_answered_with_how_many() -> None:
    reply = client().get("/api/search", params=asked(**{**LARGE, "gpus": 161280,
                                                        "global_batch": 7257600}))  # fmt: skip
    assert reply.status_code == 422
    assert "29,231,384 layouts, of which this page searches 8,000,000" in reply.text


def test_a_stopped_search_ends_between_two_pieces() -> None:
    stop, scenario = threading.Event(), scenario_of_question(question_of(json.dumps(LARGE)))
    done = list[str]()

    def search() -> None:
        try:
            with stoppable(stop):
                plan(scenario, keep=64)
            done.append("answered")
        except Stopped:
            done.append("stopped")

    thread = threading.Thread(target=search)
    thread.start()
    time.sleep(0.2)
    stop.set()
    thread.join(timeout=60)
    assert done == ["stopped"]


def test_a_process_that_ended_is_started_again() -> None:
    worker = Worker()
    pages = client(worker=worker)
    first = pages.get("/api/now", params=asked()).json()
    worker.process.kill()
    worker.process.join()
    for _ in range(100):
        if (reply := pages.get("/api/now", params=asked())).status_code == 200:
            break
        assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
        time.sleep(0.1)
    assert reply.json()["step_time_s"] == first["step_time_s"]
    worker.process.kill()


@pytest.mark.parametrize(
    ("pages", "codes"),
    [
        (["one", "two"], [404, 404]),
        (["one", "one"], [409, 404]),
        (["", ""], [409, 404]),
        (["one", ""], [404, 404]),
    ],
)
def test_a_question_ends_the_older_one_of_its_page_and_no_other(
    pages: list[str], codes: list[int]
) -> None:
    class Run:
        def begin(self, _path: str, _query: Any) -> tuple[Any, Any]:
            stopped = anyio.Event()

            async def reply() -> Any:
                with anyio.move_on_after(0.05):
                    await stopped.wait()
                return None if stopped.is_set() else refusal(404, "done")

            return reply(), stopped.set

    found: dict[int, int] = {}

    async def every() -> None:
        searches = _Searches()

        async def ask(place: int, page: str) -> None:
            scope = {"type": "http", "path": "/api/search", "client": ("192.0.2.1", 80)}
            scope |= {"query_string": f"page={page}".encode(), "headers": [], "server": ("x", 80)}
            run: Any = Run()
            reply = await searches.answer(Request(scope, anyio.sleep_forever), run)
            found[place] = reply.status_code

        async with anyio.create_task_group() as group:
            for place, page in enumerate(pages):
                group.start_soon(ask, place, page)
                await anyio.sleep(0.01)

    anyio.run(every)
    assert [found[place] for place in range(len(pages))] == codes


def test_a_search_ends_when_its_page_is_closed_and_not_when_its_question_has_come() -> None:
    stopped, answered, seen = anyio.Event(), list[int](), list[bool]()

    class Run:
        def begin(self, _path: str, _query: Any) -> tuple[Any, Any]:
            async def reply() -> Any:
                await stopped.wait()

            return reply(), stopped.set

    async def asked_and_closed() -> None:
        closed = anyio.Event()
        events = iter([{"type": "http.request", "body": b""}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            event = next(events)
            if event["type"] == "http.disconnect":
                await closed.wait()
            return event

        async def ask() -> None:
            scope = {"type": "http", "path": "/api/search", "client": ("192.0.2.1", 80)}
            scope |= {"query_string": b"page=a", "headers": [], "server": ("x", 80)}
            run: Any = Run()
            answered.append((await _Searches().answer(Request(scope, receive), run)).status_code)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.sleep(0.02)
            before = stopped.is_set() or bool(answered)
            closed.set()
            with anyio.move_on_after(1.0):
                await stopped.wait()
            seen.extend([before, stopped.is_set()])
            stopped.set()

    anyio.run(asked_and_closed)
    assert (seen, answered) == ([False, True], [409])


@pytest.mark.evidence
@needs_uvicorn
def test_a_newer_question_of_a_page_ends_the_older_one() -> None:
    """And pages of others, the static files and `now` go on meanwhile."""
    with served() as server, ThreadPoolExecutor(8) as pool:

        def ask(page: str, **changes: Any) -> int:
            query = {"q": json.dumps({**LARGE, **changes}), "page": page}
            return httpx.get(f"{server.url}/api/search", params=query, timeout=120).status_code

        older = [pool.submit(ask, "a", global_batch=15360 + 2048 * i) for i in range(3)]
        time.sleep(0.3)
        newest = pool.submit(ask, "a", **QUESTION)
        assert httpx.get(f"{server.url}/", timeout=60).status_code == 200
        assert httpx.get(f"{server.url}/api/now", params=asked(), timeout=60).status_code == 200
        assert newest.result() == 200
        assert {reply.result() for reply in older} <= {200, 409}
        assert 409 in [reply.result() for reply in older]


@pytest.mark.evidence
@needs_uvicorn
def test_connections_that_say_nothing_keep_nobody_out() -> None:
    with served() as server, ExitStack() as stack:
        port = int(server.url.rpartition(":")[2])
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(300)
        ]
        for number, held in enumerate(silent):
            with suppress(OSError):
                half = (b"", b"GET / HTTP/1.1\r\nHost: a", b"POST / HTTP/1.1\r\n")
                held.sendall(half[number % 3])
        assert httpx.get(f"{server.url}/", timeout=60).status_code == 200
        silent[-1].settimeout(60)
        with suppress(ConnectionError):
            while silent[-1].recv(1000):  # an answer to half a request, or none, and the end
                pass


@pytest.mark.evidence
@needs_uvicorn
def test_some_clients_click_at_once() -> None:
    """`make load` is this with 200 clients for five minutes."""
    with served() as server:
        load = asyncio.run(clicked(server, clients=4, seconds=0.2))
    assert (load.last, load.lost) == (4, {})
    assert len(load.waits_s) >= 8 and len(load.near_s) >= 4
    assert max(load.resident_mib) > 0.0


@pytest.mark.parametrize(("pinned", "layers"), [({}, 3), ({"recompute": "none"}, 0)])
def test_layers_that_are_recomputed_follow_their_kind(pinned: dict[str, str], layers: int) -> None:
    """Three layers of each rank stay so while they are recomputed whole, and go with that."""
    document: dict[str, Any] = {
        "model": {"name": "llama-3.2-1b"},
        "training": {"sequence_length": 2048, "global_batch": 32},
        "cluster": {"name": "dgx-h100", "gpus": 8},
        "layout": pinned,
    }
    table = Layouts.of(dp=8, shard_group=8, global_batch=16, recompute="full", recompute_layers=3)
    after = moved(table, make_scenario(document))
    assert after.recompute_layers.tolist() == [layers]
    assert after.global_batch.tolist() == [32]


def test_fields_follow_a_layout_to_another_size_by_hand() -> None:
    """tp 2 and pp 2 on twice the GPUs: dp 2 to 4, groups over all stay so, others stay as large."""
    document: dict[str, Any] = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 4096, "global_batch": 36},
        "cluster": {"name": "dgx-h100", "gpus": 32, "software": "megatron-core"},
    }
    table = Layouts.of(
        tp=[2, 2, 1], pp=2, vpp=[1, 2, 1], cp=[2, 2, 1], dp=[2, 2, 8], shard_group=[4, 2, 8],
        micro_batch=[6, 3, 2], sequence_parallel=[1, 0, 0], sharding="zero1", global_batch=48,
        stages=[[15, 17], [], []],
    )  # fmt: skip
    rows = [moved(table, make_scenario(document)).row(i) for i in range(3)]
    fields = ("tp", "vpp", "dp", "shard_group", "micro_batch", "sequence_parallel", "schedule")
    found = {(*(row[name] for name in fields), tuple(row["stages"])) for row in rows}
    assert found == {
        (2, 1, 4, 8, 3, True, "1f1b", (15, 17)),  # 36 / 4 sequences a replica: 3 divides 6 and 9
        (2, 2, 4, 2, 3, False, "interleaved", ()),
        (1, 1, 16, 16, 2, False, "1f1b", ()),
    }
    whole = moved(table, make_scenario({**document, "layout": {"pp": 1, "tp": 2}}))
    assert set(whole.vpp.tolist()) == set(whole.pp.tolist()) == {1}
    assert whole.world.tolist() == [32] * len(whole)
    assert {tuple(whole.row(i)["stages"]) for i in range(len(whole))} == {()}
    assert whole.shard_group.tolist() == [
        group if group == 2 else dp * cp
        for group, dp, cp in zip(whole.shard_group, whole.dp, whole.cp, strict=True)
    ]
    assert sorted(whole.sequence_parallel.tolist()) == [0, 1, 1]  # as before; where tp is new, on


ASKED = {"model": "gpt2-small", "cluster": "dgx-a100", "gpus": 8}


@pytest.mark.parametrize(
    ("field", "good", "wrong"),
    [
        ("gpus", [1, 200_000], [0, 200_001, 1.5, "8"]),
        ("sequence_length", [1, 10_000_000], [0, 10_000_001]),
        ("global_batch", [1, 10_000_000], [0, 10_000_001]),
        ("tokens", [1, 1e18], [0, 1.1e18, -1]),
        ("deadline_days", [0.5, 1e18], [0, -1]),
        ("budget_usd", [0.5], [0]),
        ("usd_per_gpu_hour", [0.01, 1e6], [0, 1_000_001]),
        ("minimize", ["time", "cost", "energy"], ["money"]),
        ("tight", ["never", "allowed"], ["always"]),
    ],
)
def test_bounds_of_a_question(field: str, good: list[Any], wrong: list[Any]) -> None:
    for value in good:
        assert getattr(question_of(json.dumps({**ASKED, field: value})), field) == value
    for value in wrong:
        with pytest.raises(ValueError, match=field):
            question_of(json.dumps({**ASKED, field: value}))


@pytest.mark.parametrize("field", ["tp", "pp", "vpp", "cp", "ep", "micro_batch"])
def test_bounds_of_a_pin(field: str) -> None:
    for value in (1, 100_000):
        asked = question_of(json.dumps({**ASKED, "pins": {field: value}}))
        assert asked.pins.given() == {field: value}
    for value in (0, 100_001, 2.5):
        with pytest.raises(ValueError, match=field):
            question_of(json.dumps({**ASKED, "pins": {field: value}}))
