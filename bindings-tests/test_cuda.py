"""Pools on CUDA devices, where there is none: the reason is told, and the check for machines with one is skipped."""

import subprocess
import sys

import pytest

from splitcore import _native

REASONS = ("no CUDA driver: ", "no CUDA device: ")


def without_device():
    try:
        devices = _native.cuda_devices()
    except _native.TransferError as error:
        return error
    pytest.skip(f"{devices} devices: run benches/gpu/cuda_ipc_check.py")


def test_without_a_device_the_reason_is_told():
    error = without_device()
    assert (error.kind, str(error).startswith(REASONS)) == ("memory", True)


def test_without_a_device_there_is_no_pool():
    reason = str(without_device())
    layout = _native.KvLayout(layers=1, heads=1, head_dim=8, block_tokens=1)
    with pytest.raises(_native.TransferError) as caught:
        _native.CudaPool(layout, 1)
    assert str(caught.value) == reason


def test_without_a_device_the_check_is_skipped_with_the_reason(root):
    reason = str(without_device())
    command = [sys.executable, root / "benches/gpu/cuda_ipc_check.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (f"skip: {reason}\n", "", 0)
