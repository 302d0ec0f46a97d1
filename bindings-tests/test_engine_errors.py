"""What an engine refuses, and how it says so."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: `make test` has an environment with it")

from transformers import (  # noqa: E402
    BertConfig,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from engine_pair import GREEDY, prompt, tiny  # noqa: E402
from splitcore import ConfigError  # noqa: E402
from splitcore.engine import Engine, Sampling, Span, load_model  # noqa: E402
from splitcore.engine.model import describe, load_tokenizer  # noqa: E402
from splitcore.transfer import KvLayout, KvPool  # noqa: E402

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64}
FITS = {"layers": 2, "heads": 4, "head_dim": 8, "block_tokens": 4, "dtype": "f32"}


@pytest.fixture(scope="module")
def model():
    return tiny(max_position_embeddings=64, num_key_value_heads=4, **SMALL)[0]


@pytest.fixture(scope="module")
def engine(model):
    return Engine(model, KvPool(KvLayout(**FITS), 32))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"layers": 3}, "layers 2, as the model has, got 3"),
        ({"heads": 2}, "heads 4, as the model has, got 2"),
        ({"head_dim": 16}, "head_dim 8, as the model has, got 16"),
        ({"dtype": "bf16"}, "dtype f32, as the model has, got bf16"),
        ({"tp_size": 2}, "tp_size 1, as the model has, got 2"),
        ({"heads": None, "head_dim": None, "latent_dim": 32}, "heads 4, as the model has, got None"),
    ],
)
def test_a_pool_of_another_layout_is_refused_by_the_field(model, change, told):
    with pytest.raises(ConfigError, match=told) as error:
        Engine(model, KvPool(KvLayout(**{**FITS, **change}), 4))
    assert error.value.option == "pool"


def test_a_pool_elsewhere_than_the_model_is_refused(model):
    moved = describe(copy.deepcopy(model.module).to("meta"))
    with pytest.raises(ConfigError, match="memory on meta, where the model is, got cpu"):
        Engine(moved, KvPool(KvLayout(**FITS), 4))


@pytest.mark.parametrize(
    ("span", "told"),
    [
        (Span(7, prompt(65, vocabulary=64), 0, range(17)), "request 7 within the model's context of 64 tokens, got 65"),
        (Span(7, [1], 64, range(17)), "request 7 within the model's context of 64 tokens, got 65"),
        (Span(7, [1, 2, 3], 2, [4]), "request 7 with blocks of 4 tokens up to 5, got 1"),
        (Span(7, [1], 0, []), "request 7 with blocks of 4 tokens up to 1, got 0"),
        (Span(7, [1], 0, [32]), r"request 7 with blocks below 32, got \[32\]"),
        (Span(7, [1], 0, [-1]), r"request 7 with blocks below 32, got \[-1\]"),
        (Span(7, [], 0, [1]), "request 7 with at least one token, from position 0 on, got 0:0"),
        (Span(7, [1], -1, [1]), "request 7 with at least one token, from position 0 on, got -1:0"),
        (Span(7, [1, 64, 99], 0, [1]), "request 7 with token ids below 64, got 64"),
        (Span(7, [1, -1], 0, [1]), "request 7 with token ids below 64, got -1"),
        (Span(1, [1], 0, [1]), "request 1 once, got twice"),
    ],
)
def test_a_span_that_cannot_run_is_refused_before_anything_has(engine, span, told):
    before = engine._kv.kv.clone()
    with pytest.raises(ConfigError, match=told):
        engine.run([Span(1, [1, 2], 0, [9], GREEDY), span])
    assert torch.equal(engine._kv.kv, before)


def test_a_prompt_as_long_as_the_context_runs(engine):
    told = engine.run([Span(1, prompt(64, vocabulary=64), 0, range(16), GREEDY)])
    assert list(told.tokens) == [1]


def test_an_empty_batch_gives_nothing(engine):
    assert engine.run([]).tokens == {}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"temperature": -1}, "temperature: expected a number from 0 on, got -1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0}, "top_p: expected a number above 0 and up to 1, got 0"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k: expected a whole number from 0 on, got -1"),
        ({"seed": -1}, "seed: expected a whole number in 0 to 2"),
        ({"seed": 1 << 64}, "seed"),
    ],
)
def test_sampling_out_of_range_is_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        Sampling(**options)


def test_a_model_comes_back_from_its_folder(tmp_path):
    model, plain = tiny(eos_token_id=5)
    plain.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.shape, loaded.context, loaded.end_tokens) == (model.shape, 2048, {5})
    assert load_model(tmp_path, dtype="bf16").dtype == "bf16"
    pool = KvPool(loaded.layout(16), 4)
    told = [Engine(one, pool).run([Span(0, prompt(37), 0, [0, 1, 2], GREEDY)]).tokens for one in (model, loaded)]
    assert told[0] == told[1]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=rf"model: expected a folder with a config\.json, got {folder}"):
            load_model(folder)
        with pytest.raises(ConfigError, match=r"config\.json"):
            load_tokenizer(folder)


def test_a_config_that_is_none_is_told(tmp_path):
    for text in ("{", "{}", '{"model_type": "no-such-model"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=r"config\.json of a known model, got") as error:
            load_model(tmp_path)
        assert "\n" not in str(error.value)


def test_weights_that_are_missing_are_told(tmp_path):
    LlamaConfig(**SMALL, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"a folder with the weights of its config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_model_that_is_no_causal_lm_is_refused(tmp_path, kind):
    if kind == "bert":
        BertModel(BertConfig(**SMALL)).save_pretrained(tmp_path)
    else:
        T5ForConditionalGeneration(
            T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
        ).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"a causal language model, got .*(BertModel|T5ForConditionalGeneration)"):
        load_model(tmp_path)


def test_a_device_or_dtype_that_is_not_to_be_had_is_told(tmp_path):
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="dtype: expected f32, f16, bf16, got i8"):
        load_model(tmp_path, dtype="i8")
    for device in ("nonsense", "meta", *([] if torch.cuda.is_available() else ["cuda"])):
        with pytest.raises(ConfigError, match=f"device: expected cpu, .*got {device}"):
            load_model(tmp_path, device=device)


def test_attention_that_the_engine_cannot_do_is_refused():
    windowed = MistralForCausalLM(MistralConfig(**SMALL, num_key_value_heads=4, sliding_window=8)).eval()
    told = describe(windowed)
    with pytest.raises(ConfigError, match="sliding"):
        Engine(told, KvPool(KvLayout(**FITS), 8)).run([Span(0, [1, 2], 0, [0], GREEDY)])


def test_a_model_without_an_end_of_positions_is_refused():
    with pytest.raises(ConfigError, match="max_position_embeddings, got BloomConfig"):
        describe(BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=64)))


def test_frequencies_that_hang_on_the_batch_are_refused():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=4, rope_parameters=rope)).eval()
    with pytest.raises(ConfigError, match="rope_type dynamic"):
        Engine(describe(model), KvPool(KvLayout(**FITS), 8))
