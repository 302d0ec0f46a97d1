"""Clusters that several tests start from."""

from splitcore import Cluster

SECOND = 1_000_000_000


def cluster(prompt=2, token=2, mixed=0, **options):
    """A cluster of machines p0.., t0.., m0.. with 16,000 KV tokens each."""
    made = Cluster(**options)
    for role, count in (("prompt", prompt), ("token", token), ("mixed", mixed)):
        for index in range(count):
            made.add_machine(f"{role[0]}{index}", role=role, kv_blocks=1000, now_ns=0)
    return made


def row(made, name):
    return made.loads()[made.machine_names().index(name)]
