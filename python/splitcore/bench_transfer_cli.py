"""The command ``splitcore bench-transfer``."""

from functools import partial
from pathlib import Path
from typing import Annotated, get_args

from rich.console import Group, RenderableType

from splitcore import bench_transfer as bench
from splitcore import nixl_transfer, tables
from splitcore.options import option
from splitcore.outputs import Outputs
from splitcore.progress import Bar
from splitcore.units import OptionError, bandwidth

__all__ = ["bench_transfer"]

_what = partial(option, "What is measured")
_output = partial(option, "Output")

_KIB = 1 << 10
_MIB = 1 << 20


def bench_transfer(
    *,
    backend: Annotated[
        list[str] | None, _what("NAME", "shm, tcp or nixl; may be repeated. By default each that is here.", "--backend")
    ] = None,
    block_kib: Annotated[
        list[int] | None, _what("KIB", "Bytes of a block in one layer; may be repeated.", "--block-kib")
    ] = None,
    mib: Annotated[int, _what("MIB", "Bytes of a whole transfer.")] = 256,
    repetitions: Annotated[int, _what("N", "Of each transfer; the best counts.")] = 5,
    notifies: Annotated[int, _what("N", "Layers published to a receiver that sleeps.")] = 2000,
    queued: Annotated[int, _what("N", "Transfers queued at once.")] = 10_000,
    throttle: Annotated[str, _what("RATE", "Of the emulated link.")] = "10Gbps",
    json_path: Annotated[Path | None, _output("FILE|-", "All numbers; - prints nothing else.", "--json")] = None,
) -> None:
    """Measure how fast KV moves between two processes of this machine, beside what the machine can do at best."""
    sizes = [size * _KIB for size in block_kib or (16, 64, 256, 1024, 2048)]
    _check(sizes, mib, {"repetitions": repetitions, "notifies": notifies, "queued": queued})
    bits_per_second = round((bandwidth(throttle, "throttle") or 0) * 8)
    chosen = _backends(backend)
    outputs = Outputs()
    measured: list[bench.Measured] = []
    outputs.json("json", json_path, lambda: measured)
    for name in chosen:
        with Bar(name) as bar:
            one = bench.measure(
                name,
                block_bytes=sizes,
                transfer_bytes=mib * _MIB,
                repetitions=repetitions,
                notifies=notifies,
                queued=queued,
                throttle_bits_per_second=bits_per_second,
                progress=bar.update,
            )
        measured.append(one)
    outputs.write()
    if not outputs.use_stdout:
        tables.console().print(_drawn(measured))


def _check(sizes: list[int], mib: int, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        least = 20 if name == "queued" else 1
        if count < least or count > 16_384:
            raise OptionError(name, f"a number from {least} to 16384", str(count))
    if not 1 <= mib <= 4096:
        raise OptionError("mib", "a number from 1 to 4096", str(mib))
    for size in sizes:
        if size < 4 * _KIB or size % (4 * _KIB) or size * 32 > mib * _MIB:
            expected = f"a multiple of 4, at most {mib * _MIB // 32 // _KIB}: 32 layers of a block must fit"
            raise OptionError("block-kib", expected, str(size // _KIB))


def _backends(named: list[str] | None) -> list[bench.Backend]:
    has_nixl = nixl_transfer.available() is None
    if not named:
        return [name for name in bench.BACKENDS if name != "nixl" or has_nixl]
    for name in named:
        if name not in get_args(bench.Backend):
            raise OptionError("backend", "shm, tcp or nixl", name)
        if name == "nixl" and not has_nixl:
            raise OptionError("backend", "a backend that is here (pip install splitcore[nixl])", name)
    return [name for name in bench.BACKENDS if name in named]


def _drawn(measured: list[bench.Measured]) -> RenderableType:
    speeds = tables.ruled("transport", "block [KiB]", "GB/s", "ceiling [GB/s]", "of ceiling")
    seen = tables.ruled("transport", "layer seen p50 [us]", "p99 [us]", "queued: first [1/s]", "last [1/s]")
    exposed = tables.ruled("transport", "layer-wise [ms]", "serialized [ms]", "of serialized")
    for one in measured:
        for speed in one["bandwidth"]:
            rate, ceiling = speed["bytes_per_second"], speed["ceiling_bytes_per_second"]
            block = f"{speed['block_bytes'] // _KIB}"
            speeds.add_row(one["backend"], block, f"{rate / 1e9:.2f}", f"{ceiling / 1e9:.2f}", f"{rate / ceiling:.0%}")
        notify, queued = one["notify"], one.get("queued")
        rates = () if queued is None else (queued["first_per_second"], queued["last_per_second"])
        times = f"{notify['p50_ns'] / 1e3:.1f}", f"{notify['p99_ns'] / 1e3:.0f}"
        seen.add_row(one["backend"], *times, *(f"{rate:,.0f}" for rate in rates))
        if "exposed" in one:
            wise, serial = one["exposed"]["layer_wise_ns"], one["exposed"]["serialized_ns"]
            exposed.add_row(one["backend"], f"{wise / 1e6:.2f}", f"{serial / 1e6:.2f}", f"{wise / serial:.1%}")
    headings = [
        "bytes a second, scattered blocks, until the receiver has seen the last layer",
        "how soon a sleeping receiver sees a layer; queued transfers a second",
        "wait after the prefill over an emulated link",
    ]
    filled = [(heading, table) for heading, table in zip(headings, (speeds, seen, exposed), strict=True) if table.rows]
    return Group(*(part for heading, table in filled for part in (heading, table)))
