"""Every option of a run changes something: a table with a row for each, and a run with and without it."""

import json
from typing import get_type_hints

import pytest

from splitcore import options
from splitcore.plan_schema import ClusterOptions
from test_runs import HEADER, measurements

LIGHT = {"prompt": "2xdgx-h100", "token": "1xdgx-a100", "rate": "4", "duration": "10"}
BUSY = {"prompt": "1xdgx-h100", "token": "1xdgx-a100", "rate": "10", "duration": "15"}
WHOLE = {"unsplit": "2xdgx-h100", "rate": "4", "duration": "10"}
SLOW = LIGHT | {"link-bandwidth": "1GB/s"}
LIMITED = LIGHT | {"admission": "early"}
CRASH = WHOLE | {"faults": "kill=m0@5,repair=5"}
TRACE = {"unsplit": "1xdgx-h100"}

CHANGES = {
    # Machines
    "prompt": (LIGHT, "3xdgx-h100"),
    "token": (LIGHT, "1xdgx-h100"),
    "mixed": (BUSY, "1xdgx-h100"),
    "unsplit": (WHOLE, "3xdgx-h100"),
    "only": (WHOLE, "prefill"),
    "machines": (LIGHT | {"prompt": "1xmine"}, "types.toml"),
    "link-bandwidth": (LIGHT, "1GB/s"),
    "contention": (SLOW, "off"),
    "kv-limit": (BUSY, "off"),
    "faults": (LIGHT, "kill=t0@5"),
    # Workload
    "model": (LIGHT, "llama2-70b"),
    "trace": (LIGHT, "azure-code"),
    "rate": (LIGHT, "5"),
    "duration": (LIGHT, "9"),
    "arrivals": (LIGHT, "bursty"),
    "cv": (LIGHT | {"arrivals": "bursty"}, "2"),
    "sampling": (LIGHT, "independent"),
    "seed": (LIGHT, "3"),
    "requests-limit": (LIGHT, "5"),
    "max-in-flight": (LIGHT, "2"),
    "slo-ttft": (LIMITED | {"slo-tbt": "9"}, "0.1"),
    "slo-tbt": (LIMITED | {"slo-ttft": "9"}, "0.03"),
    "classes": (LIGHT, "classes.toml"),
    "invalid-rows": (TRACE | {"trace": "bad.csv"}, "skip"),
    "missing-output": (TRACE | {"trace": "inputs.jsonl"}, "9"),
    "later-turns": (TRACE | {"trace": "turns.jsonl"}, "after-arrival"),
    "tokenizer": (TRACE | {"trace": "texts.json", "arrivals": "poisson", "rate": "4"}, "words.json"),
    # Rules
    "admission": (LIGHT | {"slo-ttft": "0.1"}, "early"),
    "recovery-headroom": (LIGHT, "0.99"),
    "split-from": (LIGHT, "1000"),
    "policy": (LIGHT, "round-robin"),
    "costs": (LIGHT, "splitwise-sim"),
    "profile": (LIGHT, "mine.toml"),
    "transfer": (LIGHT, "serialized"),
    "mixed-return": (BUSY, "idle"),
    "reserve": (LIGHT, "at-source-done"),
    "cut": (LIGHT, "before-last"),
    "ties": (LIGHT, "last"),
    "message-delay": (LIGHT, "0.01"),
    # Thresholds
    "prompt-pending-tokens-max": (BUSY, "1"),
    "kv-fill-max": (BUSY, "0.01"),
    "mixed-hold": (BUSY, "1000"),
    "attempts-max": (CRASH, "1"),
    # Second legs that wait for a token machine: reports and releases are not enough to find them one.
    "retry-interval": (BUSY | {"rate": "20", "duration": "30", "policy": "least-requests"}, "0.01"),
    "park-limit": (BUSY, "5"),
    "batch-tokens-max": (BUSY, "64"),
    "batch-requests-max": (BUSY, "1"),
    "prefill-chunk-tokens": (BUSY, "128"),
    "sit-out-max": (BUSY, "1"),
    "block-tokens": (BUSY, "64"),
    "handoff-floor-blocks": (BUSY, "2000"),
    "report-interval": (BUSY, "0.1"),
    "sends-max": (BUSY, "1"),
    "receives-max": (BUSY, "1"),
}
# What only a rare course of events shows; that these are checked is seen by a value out of range.
RARE = {
    "priority-ageing": "0",
    "rejoin-limit": "0",
    "evictions-max": "-1",
    "quarantine-limit": "2",
}

WORDS = (
    '{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, '
    '"model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}'
)
FILES = {
    "types.toml": '[machine.mine]\nlike = "dgx-h100"\n',
    "classes.toml": '[[class]]\nname = "a"\nshare = 3\n[[class]]\nname = "b"\nshare = 1\ntrace = "azure-code"\n',
    "bad.csv": "Timestamp,Request tokens,Response tokens\n1,500,20\n2,500,0\n",
    "inputs.jsonl": '{"timestamp": 1, "input_length": 5}\n',
    "turns.jsonl": (
        '{"session_id": 1, "timestamp": 1, "input_length": 5, "output_length": 5}\n'
        '{"session_id": 1, "delay": 9, "input_length": 5, "output_length": 5}\n'
    ),
    "texts.json": '[{"conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c d e"}]}]',
    "words.json": WORDS,
    "mine.csv": measurements().replace("a100-80gb", "h100-80gb")
    + measurements().removeprefix(HEADER).replace("bloom-176b,a100-80gb", "bloom-176b,a100-80gb"),
}


@pytest.fixture
def outcome(command_line, tmp_path):
    """What a run comes to: its digest and who was turned away, or its error."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def run(given):
        done = command_line("simulate", *(f"--{name}={value}" for name, value in given.items()), "--json=-", code=None)
        if done.stderr:
            return done.stderr
        summary = json.loads(done.stdout)
        return summary["digest"], summary["requests"], summary["admission"]["attainment"]

    return run


def _names():
    groups = (options.Pools, options.Machines, options.Workload, options.Rules, options.Thresholds)
    return {name.replace("_", "-") for group in groups for name in get_type_hints(group)}


def test_every_option_of_a_run_has_a_row():
    assert set(CHANGES) | set(RARE) == _names()
    assert not set(CHANGES) & set(RARE)


@pytest.mark.parametrize("option", CHANGES)
def test_an_option_changes_the_run(command_line, outcome, option):
    given, value = CHANGES[option]
    if option == "profile":
        command_line("profile", "fit", "mine.csv", "--out", "mine.toml")
    without, with_it = outcome(given), outcome(given | {option: value})
    assert isinstance(with_it, tuple), with_it
    assert without != with_it
    assert outcome(given) == without, "the same run is the same"


@pytest.mark.parametrize("option", RARE)
def test_an_option_out_of_range_is_told(outcome, option):
    assert f"--{option}: expected" in outcome(LIGHT | {option: RARE[option]})
    assert isinstance(outcome(LIGHT | {option: "1"}), tuple)


def test_the_planner_takes_every_option_of_a_run():
    spelled = {options._KEYWORDS.get(name.replace("-", "_"), name.replace("-", "_")) for name in _names()}
    assert spelled - {"rate"} == set(get_type_hints(ClusterOptions)) - {"check"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--token", "1xdgx-h100", "--token=1xdgx-a100"), "--token: expected one value, got 1xdgx-h100 and 1xdgx-a100"),
        (("--seed=1", "--seed=1"), "--seed: expected one value, got 1 and 1"),
        (("--contention", "maybe"), "--contention: expected on or off, got maybe"),
        (("--seed", "-1"), "--seed: expected a whole number from 0 to 2^64 - 1, got -1"),
        (("--seed=x",), "--seed: expected a whole number, got x"),
        (("--rate", "fast"), "--rate: expected a number, got fast"),
        (("--nonsense", "1"), "--nonsense is no option of this command\n"),
        (("--duratoin", "4"), "--duratoin is no option of this command; did you mean --duration?"),
    ],
)
def test_words_that_are_wrong_are_told_in_one_line(command_line, words, told):
    done = command_line("simulate", "--prompt", "1xdgx-h100", *words, code=2)
    assert done.stderr.count("\n") == 1
    assert told in done.stderr


def test_what_may_be_repeated_may_be(command_line):
    done = command_line("plan", "--design", "HA", "--design", "AA", "--rate", "0", code=2)
    assert "--rate: expected" in done.stderr
