"""`simulate` and `profile_fit` as the native module gives them."""

import json
import math

import numpy as np
import pytest

import splitcore

SMALL = {"prompt": "3xdgx-h100", "token": "2xdgx-h100", "rate": 4.0, "duration_s": 20.0}
HEADER = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"


def test_a_report_is_plain_data_and_arrays():
    report = splitcore.simulate(**SMALL)
    json.dumps(report.summary, allow_nan=False)
    assert report.machine_names == ["p0", "p1", "p2", "t0", "t1"]
    rows = report.requests
    assert len(rows) == report.summary["requests"]["submitted"]
    assert rows["request_id"].tolist() == list(range(len(rows)))
    assert set(rows["prompt_machine"]) <= {0, 1, 2}
    assert set(rows["token_machine"]) <= {3, 4}
    assert (rows["e2e_s"] >= rows["ttft_s"]).all()
    with pytest.raises(ValueError, match="read-only"):
        rows["e2e_s"] = 0
    lengths = {name: len(values) for name, values in report.timeline.items()}
    assert set(lengths) == {
        "t_s",
        "prompt_decodes",
        "prompt_prompt_tokens",
        "token_decodes",
        "token_prompt_tokens",
    }
    assert len(set(lengths.values())) == 1


def test_rows_outlive_their_report_and_mark_what_never_came():
    rows = splitcore.simulate(unsplit="1xdgx-h100", rate=1.0, duration_s=20.0).requests
    finished = rows["outcome"] == 0
    assert np.isfinite(rows["ttft_s"][finished]).all()
    assert np.isinf(rows["e2e_s"][~finished]).all()
    one_token = rows["output_tokens"] == 1
    assert all(math.isnan(value) for value in rows["tbt_mean_s"][one_token & finished])


def test_the_same_options_give_the_same_rows():
    first, second = splitcore.simulate(**SMALL), splitcore.simulate(**SMALL)
    assert first.summary["digest"] == second.summary["digest"]
    assert first.requests.tobytes() == second.requests.tobytes()
    assert splitcore.simulate(**SMALL, seed=1).summary["digest"] != first.summary["digest"]


def test_faults_are_the_same_for_a_seed_and_leave_the_workload_alone():
    faulty = SMALL | {"faults": "mtbf=30,repair=3,kill=t1@8", "check": True}
    first, second, calm = splitcore.simulate(**faulty), splitcore.simulate(**faulty), splitcore.simulate(**SMALL)
    assert first.summary["digest"] == second.summary["digest"] != calm.summary["digest"]
    assert first.summary["faults"] == second.summary["faults"]
    assert "faults" not in calm.summary
    for field in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert (first.requests[field] == calm.requests[field]).all()
    met = first.requests["attempts"] > 1
    assert 0 < met.sum() < len(met)
    assert first.summary["faults"]["crashes"] > 1


def test_the_progress_of_a_run_with_faults_counts_both_runs():
    calls = []
    options = {"unsplit": "40xdgx-h100", "rate": 70.0, "requests": 8000, "faults": "kill=m0@5"}
    splitcore.simulate(**options, progress=lambda *call: calls.append(call))
    assert {total for _, total in calls} == {16_000}
    assert calls == sorted(calls)
    assert calls[-1][0] > 8000


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"rte": 1.0}, "rte"),
        ({"seed": -1}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"prompt": "3xabacus"}, "prompt"),
        ({"policy": "best"}, "policy"),
        ({"faults": "kill=t9@1"}, "faults"),
        ({"faults": 5}, "faults"),
    ],
)
def test_a_bad_option_of_a_run_is_named(options, option):
    with pytest.raises(splitcore.ConfigError) as caught:
        splitcore._native.simulate(SMALL | options, None)
    assert caught.value.option == option
    assert "\n" not in str(caught.value)


def test_a_bad_line_of_a_trace_is_named(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,5\n2023-11-16 18:15:47,ten,5\n")
    with pytest.raises(splitcore.InputError) as caught:
        splitcore.simulate(prompt="1xdgx-h100", token="1xdgx-h100", trace=str(trace))
    error = caught.value
    assert (error.file, error.line) == (str(trace), 3)
    assert "ten" in error.got
    assert error.field in str(error)
    assert error.expected in str(error)


def test_the_requests_of_a_run_are_written_whole(tmp_path):
    report = splitcore.simulate(**SMALL)
    path = tmp_path / "requests.csv"
    report.write_requests_csv(path)
    lines = path.read_text().splitlines()
    assert len(lines) == len(report.requests) + 1
    assert lines[0].startswith("request_id,arrival_s")
    with pytest.raises(splitcore.SplitcoreError, match="nowhere"):
        report.write_requests_csv(tmp_path / "nowhere" / "requests.csv")
    assert [entry.name for entry in tmp_path.iterdir()] == ["requests.csv"]


def measurements():
    rows = []
    for size in (128, 512, 1024, 2048):
        rows += [f"bloom-176b,a100-80gb,{size},1,128,{20 + size / 10},{30 + size / 1000},8"] * 3
    for batch in (2, 4, 8, 16):
        rows += [f"bloom-176b,a100-80gb,512,{batch},128,{20 + 51.2 * batch},{30 + batch},8"] * 3
    return HEADER + "\n".join(rows) + "\n"


def test_a_fitted_profile_is_written_and_can_be_used(tmp_path):
    measured, profile = tmp_path / "measured.csv", tmp_path / "profile.toml"
    measured.write_text(measurements())
    ((label, errors),) = splitcore.profile_fit(measured, profile).items()
    assert label == "bloom-176b a100-80gb:tp8"
    assert set(errors) == {"prefill", "decode"}
    assert all(0 <= share < 0.2 for share in errors.values())
    assert {entry.name for entry in tmp_path.iterdir()} == {"measured.csv", "profile.toml"}
    run = splitcore.simulate(unsplit="2xdgx-a100", rate=0.5, duration_s=20.0, profile=str(profile))
    assert run.summary["requests"]["submitted"] > 0


def test_a_bad_measurement_names_its_line_and_writes_nothing(tmp_path):
    measured = tmp_path / "measured.csv"
    measured.write_text(HEADER + "bloom-176b,a100-80gb,128,1,128,soon,1,8\n")
    with pytest.raises(splitcore.InputError) as caught:
        splitcore.profile_fit(measured, tmp_path / "profile.toml")
    assert (caught.value.line, caught.value.field) == (2, "prompt_time")
    assert "soon" in caught.value.got
    with pytest.raises(splitcore.SplitcoreError, match=r"missing\.csv"):
        splitcore.profile_fit(tmp_path / "missing.csv", tmp_path / "profile.toml")
    assert [entry.name for entry in tmp_path.iterdir()] == ["measured.csv"]


CLASSES = [{"name": "a", "share": 1}, {"name": "b", "share": 1}]


def of_classes(a, b, **options):
    classes = [CLASSES[0] | a, CLASSES[1] | b]
    summary = splitcore.simulate(
        **{"unsplit": "1xdgx-h100", "rate": 4.0, "duration_s": 20.0} | options, classes=classes
    ).summary
    return {each["name"]: each for each in summary["classes"]}, summary


@pytest.mark.parametrize("strict", ["a", "b"])
def test_arrivals_are_held_against_the_limits_of_their_class(strict):
    limits = {"a": {}, "b": {}, strict: {"slo_ttft_s": 1e-7}}
    found, summary = of_classes(limits["a"], limits["b"], admission="early")
    other = "b" if strict == "a" else "a"
    assert found[strict]["requests"]["rejected"] == found[strict]["requests"]["submitted"] > 0
    assert found[other]["requests"]["rejected"] == 0 < found[other]["requests"]["completed"]
    assert (found[strict]["attainment"], found[other]["attainment"]) == (0.0, None)
    assert summary["admission"]["rejected"] == {"ttft_slo": found[strict]["requests"]["submitted"]}


def test_the_limits_of_the_run_are_those_of_a_class_without_its_own():
    found, _ = of_classes({"slo_ttft_s": 100.0}, {}, admission="early", slo_ttft_s=1e-7)
    assert found["a"]["requests"]["rejected"] == 0
    assert found["b"]["requests"]["rejected"] == found["b"]["requests"]["submitted"] > 0


@pytest.mark.parametrize(
    "options",
    [
        # The machine is away for a while, so that what was accepted waits in one line.
        {"faults": "kill=m0@10,repair=10", "rate": 8.0, "duration_s": 12.0},
        # Nothing ever fails: prompts wait at their machine.
        {"rate": 16.0, "duration_s": 12.0},
    ],
    ids=["parked", "at its machine"],
)
def test_of_what_waits_the_higher_priority_goes_first(options):
    high_a, _ = of_classes({"priority": 1000}, {}, **options)
    high_b, _ = of_classes({}, {"priority": 1000}, **options)
    for name, high, low in (("a", high_a, high_b), ("b", high_b, high_a)):
        assert high[name]["ttft_s"]["p50"] < 0.2 * low[name]["ttft_s"]["p50"], name


def test_a_file_of_classes_is_read_and_a_bad_one_names_its_line(tmp_path):
    path = tmp_path / "classes.toml"
    path.write_text(
        '[[class]]\nname = "a"\nshare = 1\npriority = 2\n\n[[class]]\nname = "b"\nshare = 2\nslo_tbt_s = 0.1\n'
    )
    summary = splitcore.simulate(**SMALL, classes=path).summary
    assert [(each["name"], each["priority"], each["slo_tbt_s"]) for each in summary["classes"]] == [
        ("a", 2, None),
        ("b", 0, 0.1),
    ]
    path.write_text('[[class]]\nname = "a"\nshare = 1\n\n[[class]]\nname = "b"\nshare = 1\nprioritty = 1\n')
    with pytest.raises(splitcore.InputError) as caught:
        splitcore.simulate(**SMALL, classes=path)
    assert (caught.value.line, caught.value.field) == (8, "class")
