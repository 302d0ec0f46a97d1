"""`splitcore.capacity` and `splitcore.plan`, and the searches below them."""

import json
from typing import get_type_hints

import pytest

import splitcore
from splitcore import _native, designs, plan_plots, plan_schema, planning
from splitcore.engines import Local

# A second's limits on one machine: searches of a few dozen runs of milliseconds.
LAX = "ttft_s = { p90 = 2.0 }\ntpot_s = { p90 = 0.2 }\n"
SMALL = {"unsplit": "1xdgx-h100", "duration_s": 20.0, "seeds": 2, "resolution": 0.1}
SIZES = {
    "designs": ["unsplit=dgx-h100", "HA"],
    "rate": 4.0,
    "machines_max": 3,
    "duration_s": 20.0,
    "seeds": 2,
    "resolution": 0.1,
}


@pytest.fixture(scope="module")
def slo(tmp_path_factory):
    path = tmp_path_factory.mktemp("slo") / "lax.toml"
    path.write_text(LAX)
    return str(path)


@pytest.fixture(scope="module")
def capacity(slo):
    return splitcore.capacity(**SMALL, slo=slo)


@pytest.fixture(scope="module")
def plan(slo):
    return splitcore.plan(**SIZES, slo=slo)


def keys(shape):
    return set(get_type_hints(shape))


def text(answer):
    return json.dumps(answer, allow_nan=False)


def test_a_capacity_has_the_shape_of_its_schema(capacity):
    assert set(capacity) == keys(plan_schema.Capacity)
    assert set(capacity["ci"]) == keys(plan_schema.Interval)
    assert {frozenset(each) for each in capacity["failing"]} == {frozenset(keys(plan_schema.Failing))}
    assert [set(seed) for seed in capacity["seeds"]] == [keys(plan_schema.SeedCapacity)] * 2
    assert all(set(each) == keys(plan_schema.Finding) for seed in capacity["seeds"] for each in seed["failing"])
    text(capacity)


def test_a_capacity_lies_between_what_holds_and_what_fails(capacity):
    assert [seed["seed"] for seed in capacity["seeds"]] == [0, 1]
    rates = [seed["max_rate"] for seed in capacity["seeds"]]
    assert capacity["max_rate"] == pytest.approx(sum(rates) / 2)
    assert capacity["ci"]["low"] <= capacity["max_rate"] <= capacity["ci"]["high"]
    for seed in capacity["seeds"]:
        assert 0 < seed["max_rate"] < seed["failing_rate"] <= 1.1 * seed["max_rate"]
        assert all(each["met"] is False and each["objective"] for each in seed["failing"])
    assert (capacity["slo"], capacity["gpus"]) == ("lax.toml", 8)
    assert capacity["max_rate_per_gpu"] == pytest.approx(capacity["max_rate"] / 8)


def test_rates_on_a_grid_are_multiples(slo):
    found = splitcore.capacity(**SMALL, slo=slo, step=0.5)
    for seed in found["seeds"]:
        assert seed["max_rate"] % 0.5 == 0
        assert seed["failing_rate"] == seed["max_rate"] + 0.5


def test_one_seed_has_no_interval(slo):
    found = splitcore.capacity(**SMALL | {"seeds": 1}, slo=slo)
    assert found["ci"] is None
    assert len(found["seeds"]) == 1


def test_what_search_finds_simulate_confirms(capacity, slo):
    seed = capacity["seeds"][0]
    spec = planning.capacity_spec(**SMALL, slo=slo)
    for rate, met in ((seed["max_rate"], True), (seed["failing_rate"], False)):
        probe = {"options": spec["options"] | {"rate": rate, "seed": 0}, "slo": spec["slo"], "whole": True}
        verdict = _native.judge(probe)
        assert set(verdict) == keys(plan_schema.Verdict)
        assert verdict["met"] is met
        run = splitcore.simulate(unsplit="1xdgx-h100", duration_s=20.0, rate=rate)
        assert verdict["requests"] == run.summary["requests"]["submitted"]
        found = next(each["found"] for each in verdict["findings"] if each["objective"] == "ttft_s p90")
        assert found == pytest.approx(run.summary["ttft_s"]["p90"])


@pytest.mark.parametrize("kind", ["capacity", "provision"])
def test_a_search_driven_by_hand_finds_the_same(kind, capacity, plan, slo):
    if kind == "capacity":
        search, expected = _native.Search.capacity(planning.capacity_spec(**SMALL, slo=slo)), capacity
    else:
        search, expected = _native.Search.provision(planning.plan_spec(**SIZES, slo=slo)), plan
    rounds = 0
    while asked := search.ask():
        assert text(search.ask()) == text(asked), "the same until they are told"
        # Sent to another process, a probe is JSON or a pickle.
        search.tell([_native.judge(probe) for probe in json.loads(text(asked))])
        rounds += 1
    done, expected_probes = search.progress()
    assert done == expected_probes == expected["probes"] >= rounds > 1
    assert text(search.found()) == text(expected)


def test_verdicts_must_be_as_many_as_were_asked_for(slo):
    search = _native.Search.capacity(planning.capacity_spec(**SMALL, slo=slo))
    asked = search.ask()
    with pytest.raises(splitcore.SplitcoreError, match="2 probes were asked for, 0 verdicts told"):
        search.tell([])
    assert search.ask() == asked


def test_jobs_change_nothing(capacity, plan, slo):
    assert text(splitcore.capacity(**SMALL, slo=slo, jobs=1)) == text(capacity)
    assert text(splitcore.plan(**SIZES, slo=slo, jobs=3)) == text(plan)


def test_progress_is_told_and_what_it_raises_ends_the_search(capacity, slo):
    calls = []
    splitcore.capacity(**SMALL, slo=slo, progress=lambda *call: calls.append(call))
    assert calls[-1][0] == capacity["probes"]
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)

    def refuse(*call):
        raise LookupError(call)

    with pytest.raises(LookupError):
        splitcore.capacity(**SMALL, slo=slo, progress=refuse)


def test_a_cache_answers_the_second_time(capacity, slo, tmp_path):
    cache = tmp_path / "runs.cache"
    first = splitcore.capacity(**SMALL, slo=slo, cache=str(cache))
    kept = cache.read_bytes()
    again = splitcore.capacity(**SMALL, slo=slo, cache=str(cache))
    assert text(first) == text(again) == text(capacity)
    assert cache.read_bytes() == kept, "no run was made again"
    finer = splitcore.capacity(**SMALL | {"resolution": 0.05}, slo=slo, cache=str(cache))
    assert finer["max_rate"] >= capacity["max_rate"]
    assert len(cache.read_bytes()) > len(kept)


def test_a_cache_is_asked_and_told_by_hand(slo, tmp_path):
    cache = _native.Cache(tmp_path / "runs.cache")
    probe, other = _native.Search.capacity(planning.capacity_spec(**SMALL, slo=slo)).ask()
    assert cache.get(probe) is None
    verdict = _native.judge(probe)
    cache.put(probe, verdict)
    assert cache.get(probe) == verdict
    assert cache.get(other) is None


def test_a_plan_has_the_shape_of_its_schema(plan):
    assert set(plan) == keys(plan_schema.Plan)
    best = plan["best"]
    assert set(best) == keys(plan_schema.Chosen)
    assert set(best["capacity"]) == keys(plan_schema.Capacity)
    assert set(best["candidate"]) == keys(plan_schema.Candidate)
    assert set(best["candidate"]["total"]) == keys(plan_schema.Price)
    assert all(set(spare) == keys(plan_schema.Spare) for spare in best["spare"])
    assert all(set(cell) == keys(plan_schema.Cell) for cell in plan["map"])
    assert plan["binding"] == []
    text(plan)


def test_the_best_is_the_cheapest_that_holds(plan):
    best = plan["best"]["candidate"]
    holding = [cell["candidate"] for cell in plan["map"] if cell["holds"]]
    assert best in holding
    assert best["total"]["cost_per_hour"] == min(each["total"]["cost_per_hour"] for each in holding)
    assert plan["best"]["margin"] >= 0
    assert best in plan["frontier"]
    assert len(plan["designs"]) == 2
    assert best in plan["designs"]


def test_the_whole_map_finds_the_same_best(plan, slo):
    whole = splitcore.plan(**SIZES, slo=slo, whole_map=True)
    assert whole["best"] == plan["best"]
    assert all(cell["judged"] is not None for cell in whole["map"])
    assert len(whole["map"]) == 3 + 3 * 3


def test_a_limit_that_leaves_nothing_is_told(slo):
    found = splitcore.plan(**SIZES, slo=slo, cost_limit=1.0)
    assert found["best"] is None
    assert all(set(binding) == keys(plan_schema.Binding) for binding in found["binding"])
    assert all("\n" not in binding["text"] for binding in found["binding"])
    binding = found["binding"][0]
    assert (binding["constraint"], binding["limit"]) == ("cost_per_hour", 1.0)
    assert binding["needed"] == 38.0


def test_objectives_that_no_size_keeps_are_told(slo):
    found = splitcore.plan(**SIZES | {"rate": 400.0}, slo=slo)
    assert found["best"] is None
    assert "slo" in [binding["constraint"] for binding in found["binding"]]


def test_the_most_for_a_budget(slo):
    options = SIZES | {"goal": "max-throughput", "rate": None, "designs": ["unsplit=dgx-h100"], "machines_max": 2}
    found = splitcore.plan(**options, slo=slo, cost_limit=80.0)
    assert (found["best"]["candidate"]["prompt"], found["best"]["margin"]) == (2, None)
    assert found["design_rates"] == [pytest.approx(found["best"]["capacity"]["max_rate"], rel=0.2)]
    assert found["map"] == []


@pytest.mark.parametrize("name", designs.PRESETS)
def test_a_preset_is_named_as_the_paper_does_or_in_full(name):
    short = name.removeprefix("splitwise-").upper()
    full = designs.design(name, "table-i", [])
    assert designs.design(short, "table-i", []) == full
    assert full["prompt_price"]["cost_per_hour"] in (17.6, 38.0)


def test_a_design_of_part_of_a_host_costs_its_share():
    half = designs.design("unsplit=dgx-h100:tp4", "table-i", [])
    assert half["prompt_price"]["cost_per_hour"] == 19.0


MACHINES = """
[machine.my-box]
like = "dgx-a100"
prefill_factor = 0.5
cost_per_hour = 5.0
"""


def test_machine_types_of_ones_own_run_and_have_their_price(slo, tmp_path):
    path = tmp_path / "machines.toml"
    path.write_text(MACHINES)
    options = {"rate": 2.0, "duration_s": 20.0}
    own = splitcore.simulate(unsplit="1xmy-box", machines=str(path), **options).summary
    built_in = splitcore.simulate(unsplit="1xdgx-a100", **options).summary
    assert own["requests"]["submitted"] == built_in["requests"]["submitted"]
    assert own["ttft_s"]["p50"] < built_in["ttft_s"]["p50"]
    sizes = SIZES | {"designs": ["unsplit=my-box", "unsplit=dgx-a100"], "rate": 2.0}
    found = splitcore.plan(**sizes, slo=slo, machines=str(path))
    assert found["best"]["candidate"]["design"] == "my-box"
    assert found["best"]["candidate"]["total"]["cost_per_hour"] == 5.0 * found["best"]["candidate"]["prompt"]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"slo": "fast"}, "slo"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": -1}, "seeds"),
        ({"seeds": 1.5}, "seeds"),
        ({"resolution": 0}, "resolution"),
        ({"resolution": "fine"}, "resolution"),
        ({"step": -1.0}, "step"),
        ({"step": "x"}, "step"),
        ({"jobs": 0}, "jobs"),
        ({"jobs": 1025}, "jobs"),
        ({"engine": "slurm"}, "engine"),
        ({"unsplit": "1xabacus"}, "unsplit"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_bad_option_of_a_search_for_a_rate_is_named(options, option):
    with pytest.raises(splitcore.ConfigError) as caught:
        splitcore.capacity(**SMALL | options)
    assert caught.value.option == option
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"designs": ["HX"]}, "designs"),
        ({"designs": []}, "designs"),
        ({"designs": ["prompt=dgx-h100"]}, "designs"),
        ({"designs": ["prompt=dgx-h100,token=dgx-a100,unsplit=dgx-a100"]}, "designs"),
        ({"designs": ["unsplit=abacus"]}, "designs"),
        ({"designs": ["unsplit=2xdgx-a100"]}, "designs"),
        ({"designs": ["unsplit="]}, "designs"),
        ({"designs": ["HA", "splitwise-ha"]}, "designs"),
        ({"goal": "best"}, "goal"),
        ({"rate": None}, "rate"),
        ({"rate": 0.0}, "rate"),
        ({"goal": "max-throughput"}, "limits"),
        ({"cost_limit": 0.0}, "cost_limit"),
        ({"power_limit": float("nan")}, "power_limit"),
        ({"space_limit": -1.0}, "space_limit"),
        ({"machines_max": 0}, "machines_max"),
        ({"machines_step": 0}, "machines_step"),
        ({"prices": "table-ii"}, "prices"),
        ({"seeds": 0}, "seeds"),
    ],
)
def test_a_bad_option_of_a_plan_is_named(options, option):
    with pytest.raises(splitcore.ConfigError) as caught:
        splitcore.plan(**SIZES | options)
    assert caught.value.option == option
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("function", [splitcore.capacity, splitcore.plan])
def test_an_unknown_keyword_is_refused_as_by_any_function(function):
    with pytest.raises(TypeError, match="unexpected keyword argument 'spede'"):
        function(spede=1)


def test_the_keywords_are_those_of_simulate():
    taken = set(splitcore.simulate.__kwdefaults__) - {"rate", "progress"}
    assert set(plan_schema.ClusterOptions.__annotations__) == taken
    assert set(plan_schema.RunOptions.__annotations__) == taken - {"prompt", "token", "mixed", "unsplit", "only"}


def test_a_malformed_set_of_objectives_names_line_and_field(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("ttft_s = { p90 = 2.0 }\ntbt_s = { p90 = 0.2 }\n")
    with pytest.raises(splitcore.InputError) as caught:
        splitcore.capacity(**SMALL, slo=str(path))
    assert (caught.value.file, caught.value.line, caught.value.field) == (str(path), 2, "tbt_s")


def test_loads_are_drawn_up_to_and_past_the_highest_rate(capacity, slo):
    spec = planning.capacity_spec(**SMALL, slo=slo)
    rates = plan_plots.rates_around(capacity["max_rate"])
    calls = []
    curve = planning.load_curve(Local(None), spec, {}, rates, lambda *call: calls.append(call))
    assert [load["rate"] for load in curve] == rates
    assert rates[0] < capacity["max_rate"] < rates[-1]
    assert all(len(load["verdicts"]) == 2 for load in curve)
    assert all(verdict["met"] for verdict in curve[0]["verdicts"])
    assert not any(verdict["met"] for verdict in curve[-1]["verdicts"])
    assert calls[-1] == (2 * len(rates), 2 * len(rates))
    figure = plan_plots.loads({"": curve}, {"": capacity})
    assert [ax.get_title() for ax in figure.axes] == ["TTFT [s] p90 (limit 2)", "TPOT [s] p90 (limit 0.2)"]
