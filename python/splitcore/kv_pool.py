"""Registered memory of KV blocks, as an array or a tensor over the same bytes."""

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitcore import _native
from splitcore._native import KvLayout
from splitcore.errors import wrong

__all__ = ["KvPool"]

# numpy has neither bfloat16 nor eight-bit floats: their bits, as whole numbers.
_NUMPY = {"f32": "f4", "f16": "f2", "bf16": "u2", "f8e4m3": "u1", "f8e5m2": "u1", "i8": "i1"}
_TORCH = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "i8": "int8",
}


class KvPool:
    """Registered memory of KV blocks: transfers read it here and write it there, and attention uses it in place.

    Attributes:
        native: The pool of the native module.
    """

    def __init__(self, layout: KvLayout, blocks: int, buffer: object = None) -> None:
        """Register memory.

        Args:
            layout: How KV lies in it.
            blocks: How many blocks of ``layout.block_bytes`` bytes.
            buffer: Memory to use, writable and contiguous, of at least that many bytes: a numpy array, a torch tensor
                on the CPU, or anything with the buffer protocol, ``__array_interface__`` or DLPack. It is held, not
                copied. None for new memory, zeroed and touched, that processes on this host can write directly.

        Raises:
            ConfigError: If the memory is too small, read-only, has gaps or is on a device.
            TransferError: If there is no memory left.
        """
        if buffer is None:
            self.native = _native.Pool.shared(layout, blocks)
        else:
            self.native = _native.Pool.borrowed(layout, blocks, _bytes_of(buffer))

    @property
    def layout(self) -> KvLayout:
        """How KV lies in it."""
        return self.native.layout

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return self.native.blocks

    def numpy(self) -> NDArray[Any]:
        """View the pool as an array, without a copy.

        Returns:
            An array ``[layer][block][K, V][head][token][element]`` of this rank's heads; with order ``"NHD"`` tokens
            stand before heads; latent attention has one plane and one head. The axes are in this order whatever the
            layout's arrangement and planes are, so it may have strides. Writable, and it keeps the pool. ``bf16`` is
            seen as uint16 and the eight-bit floats as uint8, since numpy has no such types.
        """
        shape, strides = self.native.axes
        dtype = np.dtype(_NUMPY[self.layout.dtype])
        return np.ndarray(shape, dtype, buffer=self.native.array(), strides=strides)

    def torch(self) -> Any:
        """View the pool as a tensor of its own dtype on the CPU, with the axes of `numpy` and without a copy.

        Raises:
            ConfigError: If torch is not installed, or lacks the dtype.
        """
        try:
            torch = import_module("torch")
        except ImportError as error:
            raise wrong("torch", "PyTorch (pip install torch); numpy() works without it", error) from error
        dtype = getattr(torch, _TORCH[self.layout.dtype], None)
        if dtype is None:
            raise wrong("dtype", f"one that torch {torch.__version__} has", self.layout.dtype)
        shape, strides = self.native.axes
        flat = torch.from_numpy(self.native.array()).view(dtype)
        return torch.as_strided(flat, shape, [stride // self.layout.dtype_bytes for stride in strides])

    def __repr__(self) -> str:
        """Tell the kind and size."""
        return f"KvPool({self.native!r})"


def _bytes_of(buffer: object) -> object:
    """Give what has the buffer protocol for memory that may be a tensor or another library's array."""
    if isinstance(buffer, np.ndarray | bytearray | memoryview):
        return buffer
    kind = type(buffer)
    if kind.__module__.partition(".")[0] == "torch":
        torch = import_module("torch")
        tensor: Any = buffer
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise wrong(
                "buffer", "a contiguous tensor on the CPU", f"one of strides {tensor.stride()} on {tensor.device}"
            )
        return tensor.detach().reshape(-1).view(torch.uint8).numpy()
    try:
        memoryview(buffer)  # type: ignore[arg-type]
    except TypeError:
        pass
    else:
        return buffer
    if hasattr(buffer, "__array_interface__"):
        return np.asarray(buffer)
    if hasattr(buffer, "__dlpack__"):
        return np.from_dlpack(buffer)
    raise wrong("buffer", "memory of an array, tensor or buffer", kind.__name__)
