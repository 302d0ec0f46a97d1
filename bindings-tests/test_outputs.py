"""What commands write: all or nothing, and never over what they read, whatever it is called."""

import json
import os
from pathlib import Path

import pytest

import splitcore
from splitcore.outputs import Outputs
from splitcore.units import OptionError

SMALL = ("--unsplit", "1xdgx-h100", "--rate", "4", "--duration", "5")


def spelled(folder: Path) -> dict[str, Path]:
    """Other names of `folder`/input."""
    (folder / "input").write_text("kept")
    (folder / "link").symlink_to("input")
    (folder / "far").symlink_to(folder / "link")
    (folder / "hard").hardlink_to(folder / "input")
    (folder / "sub").mkdir()
    (folder / "here").symlink_to(folder)
    opened = os.open(folder / "input", os.O_RDONLY)
    return {
        "itself": Path("input"),
        "absolute": folder / "input",
        "dots": Path("sub/../input"),
        "folder by a link": Path("here/input"),
        "link": Path("link"),
        "link to a link": Path("far"),
        "hard link": Path("hard"),
        "descriptor": Path(f"/proc/self/fd/{opened}"),
    }


@pytest.fixture
def names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = spelled(tmp_path)
    yield found
    os.close(int(found["descriptor"].name))


def test_an_input_is_no_output_by_any_of_its_names(names):
    for said, path in names.items():
        for read in names.values():
            for calls in (("reads", "add"), ("add", "reads")):
                outputs = Outputs()
                given = {"reads": ("--trace", read), "add": ("json", path, lambda path: path.write_text("new"))}
                getattr(outputs, calls[0])(*given[calls[0]])
                with pytest.raises(OptionError, match=r"--json: expected a file other than that of --trace"):
                    getattr(outputs, calls[1])(*given[calls[1]])
                assert Path("input").read_text() == "kept", said


def test_two_outputs_are_not_one_file_by_any_of_its_names(names):
    for one in names.values():
        for other in names.values():
            outputs = Outputs()
            outputs.add("json", one, lambda path: path.write_text("new"))
            with pytest.raises(OptionError, match=r"--requests: expected a file of its own"):
                outputs.add("requests", other, lambda path: path.write_text("new"))


def test_outputs_that_are_not_there_yet_are_told_apart_by_where_they_would_be(names, tmp_path):
    for one, other in (("new", tmp_path / "new"), ("new", "here/new"), ("sub/../new", "new")):
        outputs = Outputs()
        outputs.add("json", Path(one), lambda path: path.write_text("new"))
        with pytest.raises(OptionError, match="a file of its own"):
            outputs.add("requests", Path(other), lambda path: path.write_text("new"))
    assert names
    Path("dangling").symlink_to("later")
    outputs.reads("--trace", "later")
    with pytest.raises(OptionError, match="a file other than that of --trace"):
        outputs.add("requests", Path("dangling"), lambda path: path.write_text("new"))


def test_a_link_stays_and_the_file_behind_it_is_written(names):
    outputs = Outputs()
    outputs.add("json", names["link"], lambda path: path.write_text("new"))
    outputs.write()
    assert Path("link").is_symlink()
    assert Path("input").read_text() == "new"


def test_links_in_a_circle_and_to_nowhere_are_refused(names):
    assert names
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    Path("nowhere").symlink_to("none/file")
    for path in ("a", "nowhere"):
        with pytest.raises(OptionError, match="--json: expected a file"):
            Outputs().add("json", Path(path), lambda path: path.write_text("new"))


def test_the_file_that_standard_output_goes_to_is_no_output(tmp_path):
    kept = os.dup(1)
    try:
        with (tmp_path / "out").open("w") as out:
            os.dup2(out.fileno(), 1)
        for path in (tmp_path / "out", Path("/dev/stdout"), Path("/proc/self/fd/1")):
            with pytest.raises(OptionError, match="other than the one that standard output goes to"):
                Outputs().add("json", path, lambda path: path.write_text("new"))
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def test_nothing_is_written_when_one_of_them_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("old").write_text("old")

    def fails(path):
        path.write_text("half")
        raise OSError("full")

    outputs = Outputs()
    outputs.add("json", Path("-"), lambda path: path.write_text("printed"), or_stdout=True)
    outputs.add("requests", Path("old"), lambda path: path.write_text("new"))
    outputs.add("plot", Path("last"), fails)
    with pytest.raises(OSError, match="full"):
        outputs.write()
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert Path("old").read_text() == "old"
    assert capsys.readouterr().out == ""


def test_a_file_in_a_folder_of_outputs_does_not_take_the_place_of_an_input(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "map.png").write_text("kept")
    outputs = Outputs()
    outputs.reads("--slo", folder / "map.png")
    outputs.add_folder("plot", folder, lambda path: (path / "map.png").write_text("new"))
    with pytest.raises(OptionError, match="--plot: expected a file other than that of --slo"):
        outputs.write()
    assert (folder / "map.png").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]


SLO = '[[class]]\nname = "all"\ntrace = "t.jsonl"\nshare = 1\nttft_s = { p90 = 2.0 }\n'
FILES = {
    "t.jsonl": "".join(f'{{"timestamp": {at}, "input_length": 9, "output_length": 2}}\n' for at in range(0, 5000, 500)),
    "slo.toml": SLO,
}

READ = {
    "simulate, trace": ("simulate", SMALL[:2], "--trace", "t.jsonl", ("--json", "--requests")),
    "simulate, profile": ("simulate", SMALL, "--profile", "slo.toml", ("--json", "--requests")),
    "simulate, machines": ("simulate", SMALL, "--machines", "slo.toml", ("--json", "--requests")),
    "capacity, trace": ("capacity", SMALL[:2], "--trace", "t.jsonl", ("--json",)),
    "capacity, objectives": ("capacity", SMALL[:2], "--slo", "slo.toml", ("--json",)),
    "capacity, cache": ("capacity", SMALL[:2], "--cache", "runs.cache", ("--json",)),
    "plan, objectives": ("plan", ("--rate", "4"), "--slo", "slo.toml", ("--json",)),
    "parallelism, objectives": ("parallelism", ("--rate", "4"), "--slo", "slo.toml", ("--json",)),
    "replay": ("replay", (), ".", "slo.toml", ("--json",)),
    "reproduce": ("reproduce", ("splitwise",), "--cache", "runs.cache", ("--out",)),
}


@pytest.mark.parametrize(("command", "others", "reads", "name", "outputs"), READ.values(), ids=READ)
def test_no_command_writes_over_what_it_reads(command_line, tmp_path, command, others, reads, name, outputs):
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "link").symlink_to(name)
    given = (reads,) if command == "replay" else (reads, name)
    for output in outputs:
        done = command_line(command, *others, *given, output, "link", code=2)
        assert f"{output}: expected a file other than that of {reads if command != 'replay' else 'DIR'}" in done.stderr
    assert {file: (tmp_path / file).read_text() for file in FILES} == FILES
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "link"}


def test_the_traces_of_objectives_and_the_cache_are_read_too(command_line, tmp_path):
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    search = ("capacity", *SMALL[:2], "--slo", "slo.toml")
    assert "other than that of --trace" in command_line(*search, "--json", "./t.jsonl", code=2).stderr
    assert "--cache: expected a file other than" in command_line(*search, "--cache", "t.jsonl", code=2).stderr
    assert {file: (tmp_path / file).read_text() for file in FILES} == FILES


def test_a_profile_is_not_written_over_its_measurements(command_line, tmp_path):
    (tmp_path / "m.csv").write_text("kept")
    done = command_line("profile", "fit", "m.csv", "--out", tmp_path / "m.csv", code=2)
    assert "--out: expected a file other than that of FILE.csv" in done.stderr
    (tmp_path / "m.toml").hardlink_to(tmp_path / "m.csv")
    with pytest.raises(splitcore.ConfigError, match="out_path: expected another file than csv_path"):
        splitcore.profile_fit(tmp_path / "m.csv", tmp_path / "m.toml")
    assert (tmp_path / "m.csv").read_text() == "kept"


def test_rows_go_to_standard_output_and_leave_no_file(command_line, tmp_path):
    done = command_line("simulate", *SMALL, "--requests", "-", "--json", "run.json")
    header, *rows = done.stdout.splitlines()
    assert header.startswith("request_id,arrival_s")
    assert len(rows) == json.loads((tmp_path / "run.json").read_text())["requests"]["submitted"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("simulate", *SMALL, "--json", "-", "--requests", "-"), "--requests: expected a file, as --json has standard"),
        (("simulate", *SMALL, "--plot", "-"), "--plot: expected a file ending in"),
        (("profile", "fit", "m.csv", "--out", "-"), "--out: expected the name of a file, which - is not"),
        (("capacity", *SMALL[:2], "--cache", "-"), "--cache: expected an ordinary file"),
        (("plan", "--rate", "4", "--plot", "-"), "--plot: expected a folder"),
    ],
)
def test_a_dash_is_a_file_nowhere(command_line, tmp_path, arguments, told):
    (tmp_path / "m.csv").write_text("kept")
    assert told in command_line(*arguments, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["m.csv"]
