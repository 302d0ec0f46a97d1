"""The kinds of clusters that a plan chooses from."""

from collections.abc import Mapping, Sequence
from typing import Any

from splitcore import _native
from splitcore.errors import wrong
from splitcore.plan_schema import Design, Price

__all__ = ["PRESETS", "design", "pool_sizes"]

_POOLS = ("prompt", "token", "unsplit")
PRESETS: Mapping[str, Mapping[str, str]] = {
    str(preset["name"]): {pool: machine for pool in _POOLS if (machine := preset[pool]) is not None}
    for preset in _native.design_presets()
}
"""The designs of the Splitwise paper: machines by pool."""

_FORM = f"one of {', '.join(PRESETS)}, or machines as prompt=NAME,token=NAME or unsplit=NAME"
_NOTHING: Price = {"cost_per_hour": 0.0, "power_w": 0.0, "rack_units": 0.0}


def design(text: str, prices: str, machine_types: Sequence[Mapping[str, Any]]) -> Design:
    """Read a design and look its prices up.

    Args:
        text: The name of a preset, also without ``splitwise-`` and in capitals, or machines by pool.
        prices: The price table for machines that have no price of their own.
        machine_types: The user's, as plain data.

    Returns:
        The design.

    Raises:
        ConfigError: If it is neither, pools do not go together, or a machine or its price is not known.
    """
    name = text.strip()
    lower = name.lower()
    preset = next((known for known in PRESETS if lower in (known, known.removeprefix("splitwise-"))), None)
    pools = PRESETS[preset] if preset else _pools(name)
    if set(pools) not in ({"unsplit"}, {"prompt", "token"}):
        raise wrong("designs", "unsplit=NAME alone, or both prompt=NAME and token=NAME", text)

    def price(pool: str) -> Price:
        return _native.machine_price(pools[pool], prices, machine_types)

    return {
        "name": preset or "+".join(pools[pool] for pool in _POOLS if pool in pools),
        "prompt": pools.get("prompt"),
        "token": pools.get("token"),
        "unsplit": pools.get("unsplit"),
        "prompt_price": price("prompt" if "prompt" in pools else "unsplit"),
        "token_price": price("token") if "token" in pools else _NOTHING,
    }


def _pools(text: str) -> dict[str, str]:
    """Read machines by pool."""
    pools: dict[str, str] = {}
    for part in text.split(","):
        pool, equals, machine = (word.strip() for word in part.partition("="))
        if pool not in _POOLS or not equals or not machine or pool in pools:
            raise wrong("designs", _FORM, text)
        pools[pool] = machine
    return pools


def pool_sizes(design: Design, prompt: int, token: int) -> dict[str, str]:
    """Write a cluster of a design as `splitcore.simulate` takes it.

    Args:
        design: It.
        prompt: Prompt machines, or all of an unsplit cluster.
        token: Token machines.

    Returns:
        Machines by pool, as ``"25xdgx-h100"``.
    """
    if design["unsplit"] is not None:
        return {"unsplit": f"{prompt}x{design['unsplit']}"}
    return {"prompt": f"{prompt}x{design['prompt']}", "token": f"{token}x{design['token']}"}
