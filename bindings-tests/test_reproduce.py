"""Published comparisons: the rule of verdicts, the page, and the twelve cells."""

import math
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitcore import ConfigError, _native
from splitcore.reproduce import SYSTEMS, page, reproduce
from splitcore.reproduce.claims import Claim
from splitcore.reproduce.claims.distserve import DISTSERVE
from splitcore.reproduce.claims.splitwise import GRID_STEP_RPS, SPLITWISE
from splitcore.reproduce.lab import Effort, Lab
from splitcore.reproduce.results import Column, Part, Row, Section, Table, command, shown
from splitcore.reproduce.verdicts import Band, Estimate, Verdict, all_of, estimate, exactly, judge

CLAIMS = {"splitwise": SPLITWISE, "distserve": DISTSERVE}
NUMBERS = st.floats(-1e3, 1e3)


def _found(mean, low, high):
    return Estimate(mean, low, high, 5)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (_found(1.2, 1.1, 1.3), Verdict.AGREES),
        (_found(1.2, 0.9, 1.5), Verdict.OPEN),
        (_found(1.6, 1.4, 1.8), Verdict.DIRECTION),
        (_found(1.05, 1.01, 1.09), Verdict.DIRECTION),
        (_found(1.0, 0.95, 1.05), Verdict.FAILS),
        (_found(1.0, 0.8, 1.2), Verdict.OPEN),
        (_found(0.7, 0.6, 0.8), Verdict.FAILS),
        (Estimate(1.2, None, None, 1), Verdict.OPEN),
        (None, Verdict.OPEN),
    ],
)
def test_a_ratio_published_as_a_fifth_more(found, verdict):
    assert judge(Band.about(1.2, 0.1, neutral=1.0), found) is verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (_found(-0.25, -0.28, -0.22), Verdict.AGREES),
        (_found(-0.1, -0.12, -0.08), Verdict.DIRECTION),
        (_found(0.1, 0.05, 0.15), Verdict.FAILS),
        (_found(-0.2, -0.5, 0.1), Verdict.OPEN),
    ],
)
def test_a_saving_published_as_a_quarter(found, verdict):
    assert judge(Band.about(-0.25, 0.05, neutral=0.0), found) is verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (_found(0.0, -0.01, 0.01), Verdict.AGREES),
        (_found(0.0, -0.1, 0.1), Verdict.OPEN),
        (_found(0.2, 0.1, 0.3), Verdict.FAILS),
        (exactly(0.0), Verdict.AGREES),
    ],
)
def test_what_is_published_as_equal(found, verdict):
    assert judge(Band.about(0.0, 0.02), found) is verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (_found(1.1, 1.01, 1.2), Verdict.AGREES),
        (_found(1.1, 0.99, 1.2), Verdict.OPEN),
        (_found(0.9, 0.8, 0.99), Verdict.FAILS),
    ],
)
def test_more_than_nothing(found, verdict):
    assert judge(Band.above(1.0), found) is verdict
    assert judge(Band.below(-1.0), _found(-found.mean, -found.high, -found.low)) is verdict


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_agreement_and_failure_exclude_each_other(value, width, mean, half, neutral):
    width, half = abs(width), abs(half)
    band, found = Band.about(value, width, neutral), _found(mean, mean - half, mean + half)
    verdict = judge(band, found)
    if verdict is Verdict.AGREES:
        assert band.low <= mean <= band.high
        assert not found.low <= neutral <= found.high
    elif verdict is Verdict.FAILS:
        assert found.high < band.low or found.low > band.high
    elif verdict is Verdict.DIRECTION:
        assert not found.low <= neutral <= found.high


def test_several_comparisons_have_the_weakest_verdict():
    assert all_of([Verdict.AGREES, Verdict.AGREES]) is Verdict.AGREES
    assert all_of([Verdict.AGREES, Verdict.DIRECTION]) is Verdict.DIRECTION
    assert all_of([Verdict.DIRECTION, Verdict.OPEN]) is Verdict.OPEN
    assert all_of([Verdict.FAILS, Verdict.OPEN, Verdict.AGREES]) is Verdict.FAILS


def test_an_interval_is_students():
    # t(0.975; 4) = 2.776445, s = 1.581139, n = 5, about a mean of -1.
    found = estimate([-3.0, -2.0, -1.0, 0.0, 1.0])
    assert found.mean == -1.0
    assert found.count == 5
    assert found.high - found.mean == pytest.approx(1.963243, abs=1e-5)
    assert found.mean - found.low == pytest.approx(1.963243, abs=1e-5)
    assert estimate([3.0]) == Estimate(3.0, None, None, 1)
    with pytest.raises(ConfigError, match="values: expected at least one"):
        _native.mean_interval([])


def _section(mean):
    claim = Claim("speed", "it is fast", "Fig. 1", "2x", Band.about(2.0, 0.1, 1.0), "ratio", "by looking")
    found = _found(mean, mean - 0.05, mean + 0.05)
    row = Row(claim, Column([Part("here", found)], "once"), Column((), "no clock"), ["splitcore simulate"], "0 to 4")
    table = Table("Numbers", "All of them.", ("a", "b|c"), [["1", "2"]])
    return Section("splitwise", "Title", ("first", "second"), ["Words."], [row], [table])


def test_the_page_shows_what_was_found_and_nothing_else():
    text, other = (page.section(_section(mean), "splitcore reproduce splitwise") for mean in (2.01, 1.51))
    assert "here: 2.01x [1.96, 2.06]<br>(once)" in text
    assert "**agrees**" in text
    assert "(no clock) | **cannot be shown**" in text
    assert "- first, 1 claims: 1 agrees, 0 direction only, 0 does not hold, 0 cannot be shown" in text
    assert "b\\|c" in text
    assert "here: 1.51x [1.46, 1.56]" in other
    assert "**direction only**" in other
    without = [re.sub(r"\d(\.\d+)?|\*\*.*?\*\*", "", one) for one in (text, other)]
    assert without[0] == without[1]


def test_a_section_replaces_its_own_and_leaves_the_rest(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(page.merged(path, "splitwise", page.section(_section(2.0), "a")), encoding="utf-8")
    assert "How verdicts are found" in path.read_text(encoding="utf-8")
    other = page.section(_section(2.0), "b").replace("reproduce splitwise", "reproduce distserve")
    path.write_text(page.merged(path, "distserve", other), encoding="utf-8")
    before = path.read_text(encoding="utf-8")
    after = page.merged(path, "splitwise", page.section(_section(1.5), "a"))
    assert after.count("begin: splitcore reproduce") == 2
    assert "1.5x" in after
    assert after.endswith(before[before.index("<!-- begin: splitcore reproduce distserve") :])
    assert page.merged(path, "splitwise", page.section(_section(2.0), "a")) == before


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_claim_stands_on_the_page(system):
    told = []
    found = reproduce(system, quick=True, progress=lambda *what: told.append(what))
    assert sorted(row.claim.name for row in found.rows) == sorted(CLAIMS[system])
    text = page.section(found, "again")
    for claim in CLAIMS[system].values():
        assert f"| `{claim.name}`: {claim.about} | {claim.source} |" in text
    for row in found.rows:
        for column in (row.published, row.measured):
            assert column.parts or column.why
            assert all(math.isfinite(part.found.mean) for part in column.parts)
    shares = [share for _, share, _ in told]
    assert shares == sorted(shares)


def test_the_command_writes_a_section_and_can_go_on(tmp_path):
    arguments = ["reproduce", "distserve", "--quick", "--out", "page.md", "--cache", "runs.jsonl", "--jobs", "2"]
    pages = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "splitcore.cli", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=55,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert re.search(r"splitcore: distserve: goodput, \d+% done, about \d+ s left", done.stderr)
        pages.append((tmp_path / "page.md").read_text(encoding="utf-8"))
    assert pages[0] == pages[1]


def test_an_unknown_system_is_refused():
    with pytest.raises(ConfigError, match="system: expected splitwise or distserve, got orca"):
        reproduce("orca")


def test_commands_are_spelled_for_a_shell():
    options = {"prompt": "2xdgx-h100", "duration_s": 120.0, "contention": False, "rate": None, "designs": ["a", "b c"]}
    assert command("plan", options) == (
        "splitcore plan --prompt 2xdgx-h100 --duration 120 --contention off --design a --design 'b c'"
    )
    assert shown(_found(-0.25, -0.3, -0.2), "percent") == "-25 % [-30, -20]"
    assert shown(exactly(30.0), "machines") == "30.0"
    assert shown(Estimate(1.5, None, None, 1), "ratio") == "1.5x (one seed)"


def test_the_twelve_cells_lie_within_a_step_of_the_public_simulators():
    from splitcore.engines import engine
    from splitcore.reproduce.splitwise import same_power

    effort = Effort(seeds=1, few_seeds=1, search_seeds=1, resolution=0.01, duration_s=120.0, step=1, requests=1)
    (row,), (table,) = same_power.grid(Lab(effort, engine("local")))
    assert len(table.rows) == 12
    for cells in table.rows:
        reference, ours = map(float, cells[3:5])
        assert abs(ours - reference) <= GRID_STEP_RPS, cells
    assert row.published.verdict(row.claim) is Verdict.AGREES
