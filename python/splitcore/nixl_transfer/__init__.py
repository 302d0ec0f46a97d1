"""Moves KV by NIXL's one-sided writes: RDMA between hosts, where there is any.

The receiving half and the sender's books are the native ones, so checks, waits and errors are those of every backend;
this module only carries bytes and messages. `splitcore.transfer` uses it, nobody else needs to.

**Asking.** A writer that nobody has heard of yet may hold a grant that was taken back meanwhile, and its writes
would not ask the receiver. So before its first byte it asks, once for each transfer, and the receiver says go only
while the transfer is open. Layers that are put meanwhile wait at the sender.

**Fencing.** A stopped transfer's blocks are safe when its writer has answered that its writes are over, or is seen
dead, which works on one host, and what it left in the connection has been taken in. A peer that only cannot be reached
proves nothing: the blocks stay quarantined. Closing the receiver has all writers stop and deregisters the memory, which
also keeps writers on other hosts out that do not answer; on one host, where a write is a copy by the kernel, it would
not.

**Progress.** Both sides must be called: a receiver lets senders in, answers them and sees layers only in its own
`wait`, `wait_layer`, `poll`, `landed` and `stop`. A sender has a thread that makes progress.
"""

from splitcore.nixl_transfer.agent import available
from splitcore.nixl_transfer.link import NixlLink
from splitcore.nixl_transfer.receiver import NixlReceiver

__all__ = ["NixlLink", "NixlReceiver", "available"]
