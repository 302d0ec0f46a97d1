"""Loads a Hugging Face causal LM from a folder. Nothing is fetched from anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from splitcore._native import KvLayout
from splitcore.errors import wrong

__all__ = ["CausalLM", "load_model", "load_tokenizer"]

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class CausalLM:
    """A model, and what of its configuration matters here."""

    module: PreTrainedModel
    layers: int
    heads: int
    head_dim: int
    dtype: str
    vocabulary: int
    context: int
    end_tokens: frozenset[int]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        device: torch.device = self.module.device
        return device

    @property
    def shape(self) -> dict[str, object]:
        """What a pool's layout must have."""
        return {
            "layers": self.layers,
            "heads": self.heads,
            "head_dim": self.head_dim,
            "latent_dim": None,
            "dtype": self.dtype,
            "tp_size": 1,
        }

    def layout(self, block_tokens: int = 16) -> KvLayout:
        """Give the layout in which a request's blocks are a view if they are one run."""
        return KvLayout(
            layers=self.layers,
            heads=self.heads,
            head_dim=self.head_dim,
            block_tokens=block_tokens,
            dtype=self.dtype,
            order="NHD",
            planes="apart",
        )


def describe(module: PreTrainedModel) -> CausalLM:
    """Read off a model what an engine needs to know.

    Raises:
        ConfigError: If its weights are of a type that no pool has, or its positions have no end.
    """
    config = module.config.get_text_config()
    names = {dtype: name for name, dtype in _DTYPES.items()}
    if module.dtype not in names:
        raise wrong("dtype", ", ".join(_DTYPES), module.dtype)
    context = getattr(config, "max_position_embeddings", None)
    if context is None:
        raise wrong("model", "a configuration with max_position_embeddings", type(config).__name__)
    heads = config.num_attention_heads
    end = getattr(module.generation_config, "eos_token_id", None)
    return CausalLM(
        module=module,
        layers=config.num_hidden_layers,
        heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=names[module.dtype],
        vocabulary=config.vocab_size,
        context=context,
        end_tokens=frozenset([] if end is None else [end] if isinstance(end, int) else end),
    )


def load_model(folder: str | PathLike[str], *, device: str = "cpu", dtype: str | None = None) -> CausalLM:
    """Load a model.

    Args:
        folder: With ``config.json`` and weights, as ``save_pretrained`` writes it.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        dtype: ``"f32"``, ``"f16"`` or ``"bf16"``; by default that of the file.

    Raises:
        ConfigError: If there is no such folder, it holds no causal LM, or the device or dtype is not to be had.
    """
    path = _folder(folder)
    if dtype is not None and dtype not in _DTYPES:
        raise wrong("dtype", ", ".join(_DTYPES), dtype)
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise wrong("device", "cpu, cuda or cuda:N", device) from error
    if where.type not in ("cpu", "cuda") or (where.type == "cuda" and not torch.cuda.is_available()):
        raise wrong("device", "cpu, or cuda where there is one", device)
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise wrong("model", "a folder with the config.json of a known model", f"{path}: {_line(error)}") from error
    _check_causal(path, config)
    try:
        with quiet():
            module = AutoModelForCausalLM.from_pretrained(
                path, local_files_only=True, dtype="auto" if dtype is None else _DTYPES[dtype]
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise wrong("model", "a folder with the weights of its config.json", f"{path}: {_line(error)}") from error
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    return describe(module.to(where).eval())


def load_tokenizer(folder: str | PathLike[str]) -> Any:
    """Load the tokenizer beside a model.

    Raises:
        ConfigError: If there is none.
    """
    path = _folder(folder)
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise wrong("model", "a folder with a tokenizer", f"{path}: {_line(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' bars and remarks off the terminal."""
    told, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(told)
        if bars:
            logging.enable_progress_bar()


def _folder(folder: str | PathLike[str]) -> Path:
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise wrong("model", "a folder with a config.json", path)
    return path


def _check_causal(path: Path, config: Any) -> None:
    # A class of its own for every architecture: models that only read, or encode and decode, have none here.
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not getattr(config, "is_encoder_decoder", False)
    named = getattr(config, "architectures", None) or []
    if not causal or (named and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in named)):
        raise wrong("model", "a causal language model", f"{path}: {', '.join(named) or type(config).__name__}")


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
