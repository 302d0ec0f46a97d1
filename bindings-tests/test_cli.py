"""The command line, run as a person runs it."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import splitcore
from splitcore.schema import METRICS, OUTCOMES, PERCENTILES, Recovery
from splitcore.units import OptionError, bandwidth

SMALL = ("--rate", "4", "--duration", "20")
SPLIT = ("--prompt", "2xdgx-h100", "--token", "1xdgx-a100", *SMALL)
UNSPLIT = ("--unsplit", "3xdgx-h100", *SMALL)

LATENCY = {"mean", "p50", "p90", "p99", "max"}
SUMMARY = {
    "requests": {"submitted", "completed", "rejected", "failed", "cancelled", "unfinished"},
    "ttft_s": LATENCY,
    "tbt_s": LATENCY,
    "tpot_s": LATENCY,
    "e2e_s": LATENCY,
    "slo": {"met", "slowdown", "limits", "attainment"},
    "transfer": {"count", "bytes", "serialized", "layer_wise", "visible_s"},
    "admission": {"rule", "slo_ttft_s", "slo_tbt_s", "attainment", "rejected"},
    "gaps_s": LATENCY | {"count"},
    "pools": {"to_mixed", "to_home"},
    "notes": [],
    "machines": [
        {
            "name", "role", "hardware", "utilisation", "passes", "prompt_tokens", "decode_tokens", "batch_decodes_mean",
            "batch_decodes_max", "batch_prompt_tokens_mean", "peak_kv_tokens",
        },
    ] * 3,
} | dict.fromkeys(
    (
        "out_of_range_lookups", "cost_model", "policy", "model", "trace", "transfer_mode", "rate_rps", "seed",
        "evictions", "pauses", "events", "duration_s", "wall_s", "digest",
    )
)  # fmt: skip
COLUMNS = (
    "request_id,arrival_s,prompt_tokens,output_tokens,ttft_s,tbt_mean_s,tbt_max_s,e2e_s,"
    "prompt_machine,token_machine,attempts,outcome"
)

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def _summary(done):
    return json.loads(done.stdout)


def test_version_is_the_packages(cli):
    assert cli("--version").stdout.startswith("splitcore ")


def test_every_option_is_in_the_help(cli):
    shown = cli("simulate", "--help").stdout
    options = (
        "prompt token mixed unsplit model trace rate duration arrivals cv sampling seed policy costs profile transfer "
        "link-bandwidth contention faults mixed-return reserve cut ties message-delay max-in-flight kv-limit "
        "requests-limit machines json requests plot"
    )
    assert [name for name in options.split() if f"--{name} " not in shown] == []


@pytest.mark.parametrize("machines", [SPLIT, UNSPLIT], ids=["split", "unsplit"])
def test_the_table_tells_the_run_and_its_slos(cli, machines):
    done = cli("simulate", *machines)
    assert done.stderr == ""
    for word in ("bloom-176b", "azure-conv", "seed 0", "measured", "TTFT", "TBT", "TPOT", "E2E", "gap"):
        assert word in done.stdout
    for word in ("nine SLOs", "busy", "out of range", "digest", "events", "KV transfers", "dgx-h100"):
        assert word in done.stdout


def _keys(value):
    """The keys of a value, one level deep in lists."""
    if isinstance(value, list):
        return [_keys(item) for item in value]
    return set(value) if isinstance(value, dict) else None


def test_json_on_stdout_is_all_of_stdout(cli):
    done = cli("simulate", *SPLIT, "--json", "-")
    summary = _summary(done)
    assert done.stderr == ""
    assert {name: _keys(value) for name, value in summary.items()} == SUMMARY
    slo = summary["slo"]
    for name in METRICS:
        assert set(slo["slowdown"][name]) == set(slo["limits"][name]) == set(PERCENTILES)
    assert set(slo["limits"]) == {*METRICS, "attainment"}
    assert set(summary["transfer"]["visible_s"]) == {"mean", "p50", "p99", "max"}
    assert sum(summary["requests"][outcome] for outcome in OUTCOMES) == summary["requests"]["submitted"] > 0
    assert [machine["role"] for machine in summary["machines"]] == ["prompt", "prompt", "token"]


def test_the_same_seed_gives_the_same_json_but_for_the_time_it_took(cli):
    one, other = (_summary(cli("simulate", *SPLIT, "--json", "-")) for _ in range(2))
    different = _summary(cli("simulate", *SPLIT, "--seed", "1", "--json", "-"))
    assert one.pop("wall_s") > 0
    assert other.pop("wall_s") > 0
    assert one == other
    assert one["digest"] != different["digest"]


def test_files_are_written_and_nothing_else(cli, tmp_path):
    cli("simulate", *SPLIT, "--json", "run.json", "--requests", "run.csv", "--plot", "run.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.csv", "run.json", "run.png"]
    summary = json.loads((tmp_path / "run.json").read_text())
    header, *rows = (tmp_path / "run.csv").read_text().splitlines()
    assert header == COLUMNS
    assert len(rows) == summary["requests"]["submitted"]
    assert {row.rsplit(",", 1)[1] for row in rows} == {"finished"}
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_rejected_requests_are_told_and_drawn(cli, tmp_path):
    shown = cli("simulate", *SPLIT, "--max-in-flight", "1", "--requests", "run.csv", "--plot", "run.png").stdout
    assert "rejected" in shown
    assert "inf >= " in shown
    assert ",rejected\n" in (tmp_path / "run.csv").read_text()


def test_faults_are_told_in_a_table_and_in_the_summary(cli):
    faulty = (*SPLIT, "--faults", "kill=t0@10,repair=5")
    shown = cli("simulate", *faulty).stdout
    for word in ("1 crashes", "resume (this run)", "restart", "lost work", "lost KV tokens", "crash to next new token"):
        assert word in shown
    summary = _summary(cli("simulate", *faulty, "--json", "-"))
    faults = summary.pop("faults")
    assert set(summary) == set(SUMMARY)
    restart = faults.pop("restart")
    assert set(faults) == set(restart) == set(Recovery.__annotations__)
    assert faults["crashes"] == restart["crashes"] == 1
    assert (faults["resumed"] > 0, restart["resumed"], faults["failed"]) == (True, 0, 0)
    assert faults["extra_time_s"] < restart["extra_time_s"]
    assert faults["attainment"] == summary["slo"]["attainment"]
    assert "cluster restarts" not in shown


def test_a_lost_cluster_is_told_in_the_table_and_in_the_summary(cli):
    faulty = (*SPLIT, "--faults", "kill=cluster@10,restart=2,grace=0.5")
    shown = cli("simulate", *faulty).stdout
    for word in ("cluster restarts", "requests adopted", "requests resubmitted"):
        assert word in shown
    faults = _summary(cli("simulate", *faulty, "--json", "-"))["faults"]
    restart = faults["restart"]
    assert (faults["crashes"], faults["cluster_restarts"], restart["cluster_restarts"]) == (0, 1, 1)
    assert faults["adopted"] > 0 == restart["adopted"]
    assert faults["resubmitted"] == 0, "messages take no time here, so some machine has heard of each"
    assert restart["resubmitted"] == restart["restarted"] >= faults["adopted"], "some end without a Cluster"
    assert faults["extra_time_s"] < restart["extra_time_s"]


def test_without_faults_there_is_no_table_of_them(cli):
    assert "crash" not in cli("simulate", *SPLIT).stdout


def test_admission_is_told_with_its_reasons(cli):
    limits = ("--admission", "early", "--slo-ttft", "0.2", "--slo-tbt", "0.05")
    admission = _summary(cli("simulate", *SPLIT, *limits, "--json", "-"))["admission"]
    assert (admission["rule"], admission["slo_ttft_s"], admission["slo_tbt_s"]) == ("early", 0.2, 0.05)
    assert set(admission["rejected"]) <= {"ttft_slo", "tbt_slo"}
    assert 0 < admission["attainment"] < 1
    shown = cli("simulate", *SPLIT, *limits).stdout
    assert "turned away (early)" in shown
    assert "requests within the limits" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--admission", "early"), "--admission: expected slo_ttft_s or slo_tbt_s beside it, got `early` alone"),
        (("--slo-ttft", "0"), "--slo-ttft: expected seconds from 1e-9 to 1e9, got 0"),
        (("--slo-tbt", "-1"), "--slo-tbt: expected seconds from 1e-9 to 1e9, got -1"),
        (("--recovery-headroom", "1"), "--recovery-headroom: expected 0 to 0.999, got 1"),
    ],
)
def test_a_wrong_limit_is_told_in_one_line(cli, arguments, message):
    assert message in cli("simulate", *SPLIT, *arguments, code=2).stderr


def test_short_prompts_and_headroom_are_options_of_a_run(cli):
    whole = _summary(cli("simulate", *SPLIT, "--split-from", "1000000", "--json", "-"))
    assert whole["transfer"]["count"] == 0
    kept = _summary(cli("simulate", *SPLIT, "--recovery-headroom", "0.99", "--json", "-"))
    assert set(kept["admission"]["rejected"]) == {"headroom"}


def test_requests_limit_cuts_the_arrivals(cli):
    assert _summary(cli("simulate", *UNSPLIT, "--requests-limit", "7", "--json", "-"))["requests"]["submitted"] == 7


def _plain():
    return splitcore.simulate(prompt="2xdgx-h100", token="1xdgx-a100", rate=4.0, duration_s=20.0).summary


def test_the_command_line_gives_what_python_gives(cli):
    assert _summary(cli("simulate", *SPLIT, "--json", "-")) | {"wall_s": 0} == _plain() | {"wall_s": 0}


def test_a_trace_runs_with_its_own_timestamps(cli, tmp_path):
    rows = "".join(f"2023-11-16 18:15:{second:02}.5,374,44\n" for second in range(0, 60, 2))
    (tmp_path / "t.csv").write_text(AZURE + rows)
    cli("simulate", "--unsplit", "1xdgx-h100", "--trace", "t.csv", "--requests", "run.csv")
    lines = (tmp_path / "run.csv").read_text().splitlines()[1:]
    assert [float(line.split(",")[1]) for line in lines] == list(range(0, 60, 2))


BAD_OPTIONS = {
    "rate of zero": ((*UNSPLIT[:2], "--rate", "0"), "--rate"),
    "negative rate": ((*UNSPLIT[:2], "--rate", "-1"), "--rate"),
    "rate that is no number": ((*UNSPLIT[:2], "--rate", "nan"), "--rate"),
    "built-in workload without a rate": (UNSPLIT[:2], "--rate"),
    "negative duration": ((*UNSPLIT, "--duration", "-5"), "--duration"),
    "no machines": (SMALL, "expected"),
    "empty prompt pool": (("--prompt", "0xdgx-h100", "--token", "1xdgx-a100", *SMALL), "--prompt"),
    "prompt pool alone": (("--prompt", "1xdgx-h100", *SMALL), "--token"),
    "pools and unsplit": ((*SPLIT, "--unsplit", "1xdgx-h100"), "--unsplit"),
    "unknown machine": (("--unsplit", "2xdgx-z9", *SMALL), "dgx-z9"),
    "model that does not fit": (("--unsplit", "2xdgx-a100:tp2", *SMALL), "bloom-176b"),
    "unknown model": ((*UNSPLIT, "--model", "tiny"), "--model"),
    "unknown policy": ((*UNSPLIT, "--policy", "best"), "--policy"),
    "unknown costs": ((*UNSPLIT, "--costs", "free"), "--costs"),
    "unknown profile": ((*UNSPLIT, "--profile", "none.toml"), "none.toml"),
    "unknown arrivals": ((*UNSPLIT, "--arrivals", "late"), "--arrivals"),
    "unknown sampling": ((*UNSPLIT, "--sampling", "odd"), "--sampling"),
    "unknown transfer": ((*SPLIT, "--transfer", "post"), "--transfer"),
    "unknown mixed return": ((*SPLIT, "--mixed-return", "never"), "--mixed-return"),
    "unknown reserve": ((*SPLIT, "--reserve", "later"), "--reserve"),
    "unknown cut": ((*SPLIT, "--cut", "anywhere"), "--cut"),
    "negative delay": ((*SPLIT, "--message-delay", "-1"), "--message-delay"),
    "unknown ties": ((*SPLIT, "--ties", "both"), "--ties"),
    "seed below zero": ((*SPLIT, "--seed", "-1"), "--seed"),
    "fraction of requests": ((*SPLIT, "--requests-limit", "1.5"), "--requests-limit"),
    "no requests": ((*SPLIT, "--requests-limit", "0"), "--requests-limit"),
    "no gaps": ((*SPLIT, "--arrivals", "bursty", "--cv", "0"), "--cv"),
    "rate that is a word": ((*UNSPLIT[:2], "--rate", "fast"), "--rate"),
    "option without a value": ((*UNSPLIT, "--seed"), "--seed"),
    "unknown option": ((*UNSPLIT, "--speed", "1"), "--speed"),
    "word too many": ((*UNSPLIT, "again"), "again"),
    "none in flight": ((*SPLIT, "--max-in-flight", "0"), "--max-in-flight"),
    "bandwidth without a unit of time": ((*SPLIT, "--link-bandwidth", "200GiB"), "--link-bandwidth"),
    "bandwidth that is a word": ((*SPLIT, "--link-bandwidth", "fast"), "--link-bandwidth"),
    "bandwidth of zero": ((*SPLIT, "--link-bandwidth", "0GB/s"), "--link-bandwidth"),
    "switch that is neither": ((*SPLIT, "--kv-limit", "maybe"), "--kv-limit"),
    "fault of no kind": ((*SPLIT, "--faults", "often"), "--faults: expected mtbf=SECONDS, repair=SECONDS, kill="),
    "fault of a machine that is not there": ((*SPLIT, "--faults", "kill=t1@5"), "--faults: expected cluster or a"),
    "grace time of nobody": ((*SPLIT, "--faults", "mtbf=9,grace=1"), "--faults: expected kill=cluster@SECONDS beside"),
    "faults without end": ((*SPLIT, "--faults", "mtbf=0"), "--faults: expected seconds"),
    "missing trace": (("--unsplit", "1xdgx-h100", "--trace", "none.csv"), "none.csv"),
    "plot of an unknown kind": ((*UNSPLIT, "--plot", "run.gif"), "--plot"),
    "one file for two outputs": ((*UNSPLIT, "--json", "run.csv", "--requests", "run.csv"), "--requests"),
}


def _error(done):
    """The one line on stderr."""
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("splitcore: error: ")
    return done.stderr


@pytest.mark.parametrize(("options", "named"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_a_bad_option_is_named_in_one_line_and_nothing_is_written(cli, tmp_path, options, named):
    outputs = () if "--json" in options else ("--json", "run.json", "--requests", "requests.csv")
    assert named in _error(cli("simulate", *options, *outputs, code=2))
    assert list(tmp_path.iterdir()) == []


def _mooncake(*rows):
    return "".join(
        json.dumps(dict(zip(("timestamp", "input_length", "output_length"), row, strict=True))) + "\n" for row in rows
    )


BAD_TRACES = {
    "csv token that is no number": ("t.csv", f"{AZURE}2023-11-16 18:15:46.68,abc,44\n", 2, "ContextTokens"),
    "csv negative tokens": ("t.csv", f"{AZURE}2023-11-16 18:15:46.68,374,-4\n", 2, "GeneratedTokens"),
    "csv zero tokens": ("t.csv", f"{AZURE}2023-11-16 18:15:46.68,0,4\n", 2, "ContextTokens"),
    "csv bad timestamp": ("t.csv", f"{AZURE}yesterday,374,4\n", 2, "TIMESTAMP"),
    "csv row cut short": ("t.csv", f"{AZURE}2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:47.68\n", 3, ""),
    "csv without a column": ("t.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,374\n", 1, "GeneratedTokens"),
    "jsonl cut short": ("t.jsonl", '{"timestamp": 0, "input_len', 1, ""),
    "jsonl missing key": ("t.jsonl", '{"timestamp": 0, "input_length": 5}\n', 1, "output_length"),
    "jsonl negative tokens": ("t.jsonl", _mooncake((0, 5, 5), (1, -5, 5)), 2, "input_length"),
    "jsonl zero tokens": ("t.jsonl", _mooncake((0, 5, 0)), 1, "output_length"),
}


@pytest.mark.parametrize(("name", "text", "line", "field"), BAD_TRACES.values(), ids=BAD_TRACES)
def test_a_bad_trace_is_told_by_file_line_and_field(cli, tmp_path, name, text, line, field):
    (tmp_path / name).write_text(text)
    told = _error(cli("simulate", "--unsplit", "1xdgx-h100", "--trace", name, "--json", "run.json", code=2))
    assert f"{name}:{line}: {field}" in told
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("option", ["--json", "--requests", "--plot"])
def test_a_missing_output_folder_is_found_before_the_run(cli, tmp_path, option):
    # The trace does not exist either: were the run begun, the error would name it.
    told = _error(cli("simulate", "--trace", "none.csv", option, tmp_path / "none" / "run.png", code=2))
    assert f"{option}: expected a file in an existing folder" in told


def test_a_folder_without_write_permission_is_found_before_the_run(cli):
    # Even the superuser cannot make files there.
    told = _error(cli("simulate", "--trace", "none.csv", "--json", "/proc/run.json", code=2))
    assert "--json: expected a file that can be written, got /proc/run.json" in told


def test_what_is_no_file_is_not_replaced(cli, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "an ordinary file" in _error(cli("simulate", *UNSPLIT, "--json", "pipe", code=2))
    assert (tmp_path / "pipe").is_fifo()


def test_an_older_output_survives_a_failed_run(cli, tmp_path):
    (tmp_path / "run.json").write_text("old")
    cli("simulate", "--unsplit", "1xdgx-h100", "--rate", "0", "--json", "run.json", code=2)
    assert (tmp_path / "run.json").read_text() == "old"


@pytest.mark.parametrize("arguments", [(), ("simulate",), ("plan",), ("profile",), ("profile", "fit")])
def test_an_unfinished_command_is_told_or_helped(cli, arguments):
    done = cli(*arguments, code=2)
    assert ("Usage" in done.stdout and done.stderr == "") or _error(done)


MEASUREMENTS = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"


def _measurements():
    sizes = [(prompt, 1) for prompt in (128, 512, 2048, 8192)] + [(512, batch) for batch in (2, 8, 32, 64)]
    return MEASUREMENTS + "".join(
        f"bloom-176b,{gpu},{prompt},{batch},128,{10 + 0.1 * prompt * batch},{30 + 0.3 * batch},8\n"
        for gpu in ("a100-80gb", "h100-80gb")
        for prompt, batch in sizes
    )


def test_profile_fit_writes_a_profile_that_simulate_takes(cli, tmp_path):
    (tmp_path / "mine.csv").write_text(_measurements())
    shown = cli("profile", "fit", "mine.csv", "--out", "mine.toml").stdout
    for word in ("MAPE", "prefill", "decode", "bloom-176b h100-80gb:tp8", "%"):
        assert word in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.csv", "mine.toml"]
    built_in = _summary(cli("simulate", *UNSPLIT, "--json", "-"))
    fitted = _summary(cli("simulate", *UNSPLIT, "--profile", "mine.toml", "--json", "-"))
    assert fitted["requests"] == built_in["requests"]
    assert fitted["digest"] != built_in["digest"]


def test_profile_fit_names_a_bad_measurement(cli, tmp_path):
    (tmp_path / "bad.csv").write_text(f"{MEASUREMENTS}bloom-176b,h100-80gb,512,1,128,fast,50,8\n")
    assert "bad.csv:2: prompt_time" in _error(cli("profile", "fit", "bad.csv", "--out", "mine.toml", code=2))
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


# The first progress call proves that the run has begun, so no time is guessed.
INTERRUPTED = """
    import os, signal
    from splitcore import cli, progress
    def interrupt(self, done, total):
        os.kill(os.getpid(), signal.SIGINT)
    progress.Bar.update = interrupt
    cli.main()
"""


def test_ctrl_c_ends_a_run_with_130_and_writes_nothing(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), "simulate", "--unsplit", "40xdgx-h100"]
    command += ["--rate", "60", "--duration", "3000", "--json", "run.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_demo_prints_a_table_and_names_its_plot(tmp_path):
    code = "import pathlib, splitcore.comparison as d; d.main(pathlib.Path('out/comparison.png'), duration_s=10)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert "Baseline-H100 x40" in done.stdout
    assert "Splitwise-HA 25P/26T" in done.stdout
    assert done.stdout.count("slowdown p") == 9
    assert done.stdout.rstrip().endswith("plot: out/comparison.png")
    assert (tmp_path / "out/comparison.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("200GiB/s", 200 * 2**30),
        ("25GB/s", 25e9),
        ("400Gbps", 50e9),
        ("400Gb/s", 50e9),
        ("1.5TB/s", 1.5e12),
        ("800kb/s", 1e5),
        ("200e9", 200e9),
        ("12B/s", 12),
        (" 25 GB/s ", 25e9),
    ],
)
def test_bandwidths_are_bytes_per_second(text, bytes_per_s):
    assert bandwidth(text) == pytest.approx(bytes_per_s, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["", "fast", "GB/s", "-1GB/s", "0", "200GiB", "200/s", "200Gib/s", "1e999", "nan", "1PB/s"]
)
def test_other_bandwidths_are_refused(text):
    with pytest.raises(OptionError, match=r"^--link-bandwidth: expected a rate"):
        bandwidth(text)
