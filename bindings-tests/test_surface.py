"""The surface: what is public, typed, frozen and light to import."""

import ast
import re
import subprocess
import sys

import pytest

import splitcore
from splitcore import _native

# Public in the native module, but not what `splitcore` exports under the name.
WRAPPED = dict.fromkeys(("capacity", "simulate"), "takes the options as keyword arguments")
# Public in the native module, and called by functions of `splitcore` alone.
INNER = {
    "Cache": "opened by path",
    **dict.fromkeys(("bench_transfer", "bench_transfer_receive"), "`splitcore bench-transfer`"),
    "Search": "driven by engines",
    "design_presets": "`splitcore.designs.PRESETS`",
    "judge": "called by engines",
    "machine_price": "looked up for designs",
    "machine_types": "read for `machines`",
    "mean_interval": "called by `splitcore.reproduce`",
    "placement": "`parallelism`",
    "provision": "`plan`",
    "serve": "`splitcore serve`",
    "published_pools": "looked up by `splitcore.reproduce`",
    "slo_set": "read for `slo`",
    "traffic_classes": "read for `classes`",
    "workload": "`splitcore load`",
    **dict.fromkeys(
        ("Arrival", "Completion", "Grant", "KvLayout", "LayerSeal", "TransferKey", "TransferPlan", "new_incarnation"),
        "`splitcore.transfer`",
    ),
    **dict.fromkeys(("plan_transfer", "senders"), "`splitcore.transfer`"),
    **dict.fromkeys(
        ("Books", "Link", "Pool", "Receiver", "WriterStops", "choose_backend", "connect"),
        "wrapped by `splitcore.transfer`",
    ),
    **dict.fromkeys(("CudaPool", "CudaStream", "cuda_devices"), "for pools on devices"),
    **dict.fromkeys(("Pass", "Worker"), "`splitcore.worker`"),
}

PYCLASS = re.compile(r"#\[(?:pyo3::)?pyclass(?:\((?P<options>[^\]]*)\))?\]")


def _stub_names(root):
    tree = ast.parse((root / "python/splitcore/_native.pyi").read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    }


def _native_names():
    return {name for name in dir(_native) if not name.startswith("_")}


def test_every_pyclass_is_frozen(root):
    found = [
        (source.name, match["options"] or "")
        for source in sorted((root / "rust/py/src").rglob("*.rs"))
        for match in PYCLASS.finditer(source.read_text(encoding="utf-8"))
    ]
    assert len(found) >= 10, "the pattern no longer finds the classes"
    assert [place for place in found if not re.search(r"\bfrozen\b", place[1])] == []


def test_the_stub_names_what_the_native_module_has(root):
    assert _stub_names(root) == _native_names()


def test_every_native_name_is_exported_or_wrapped():
    exported = {name for name in _native_names() if getattr(splitcore, name, None) is getattr(_native, name)}
    assert _native_names() - exported == {*WRAPPED, *INNER}
    assert _native_names() - set(INNER) <= set(splitcore.__all__)


def test_everything_in_all_is_there_once():
    assert [name for name in splitcore.__all__ if not hasattr(splitcore, name)] == []
    assert len(set(splitcore.__all__)) == len(splitcore.__all__)


def test_errors_have_one_root():
    errors = [value for name, value in vars(_native).items() if name.endswith("Error")]
    assert len(errors) >= 8
    assert all(issubclass(error, splitcore.SplitcoreError) for error in errors)
    assert splitcore.SplitcoreError.__bases__ == (Exception,)


@pytest.mark.parametrize("package", ["torch", "matplotlib", "typer", "rich", "ray"])
def test_importing_splitcore_does_not_import(package):
    code = f"import sys, splitcore; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_plots_imports_matplotlib_only_to_draw():
    code = "import sys, splitcore.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
