"""The compiled scheduler core. Import these names from `splitcore`."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Final, Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from splitcore.plan_schema import Capacity, Interval, Plan, Price, Probe, SloSet, Verdict
from splitcore.schema import CostTable, Replayed, Summary, SwarmSummary

__all__ = [
    "Arrival",
    "Books",
    "Cache",
    "CallInterrupted",
    "Cluster",
    "Completion",
    "ConfigError",
    "CudaPool",
    "CudaStream",
    "DuplicateMachineError",
    "DuplicateRequestError",
    "EventError",
    "Grant",
    "Handled",
    "HandshakeError",
    "InputError",
    "KvLayout",
    "LayerSeal",
    "Leg",
    "Link",
    "Machine",
    "Pass",
    "PlacedMany",
    "Placement",
    "Polled",
    "Pool",
    "Receiver",
    "Recovery",
    "RejectedError",
    "Report",
    "Search",
    "SimulationStuckError",
    "Snapshot",
    "SplitcoreError",
    "TransferError",
    "TransferKey",
    "TransferPlan",
    "UnknownIdError",
    "Why",
    "Worker",
    "WriterStops",
    "__version__",
    "bench_transfer",
    "bench_transfer_receive",
    "capacity",
    "choose_backend",
    "connect",
    "cuda_devices",
    "design_presets",
    "judge",
    "machine_price",
    "machine_types",
    "mean_interval",
    "new_incarnation",
    "placement",
    "plan_transfer",
    "profile_fit",
    "provision",
    "published_pools",
    "replay",
    "senders",
    "serve",
    "simulate",
    "slo_set",
    "swarm",
    "traffic_classes",
    "workload",
]

__version__: Final[str]

class SplitcoreError(Exception):
    """Every error that splitcore raises on purpose; its text is one line."""

class ConfigError(SplitcoreError):
    """An option or argument is out of range."""

    option: str
    """The argument's name."""
    expected: str
    """What would have been accepted."""
    got: str
    """What was given."""

class InputError(SplitcoreError):
    """A field of an input file is bad."""

    file: str
    """The path as it was given."""
    line: int
    """From 1; the header of a CSV file is line 1."""
    field: str
    """The column or key."""
    expected: str
    """What would have been accepted."""
    got: str
    """What was found."""

class CallInterrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of `Cluster.place_many` or of a ``handle``, which stop between two requests or events.

    What else a handler of a signal raised there stays what it is and gets the same two attributes.
    """

    done: int
    """Requests placed or rejected, or events applied or refused: the first so many of the call's."""
    result: PlacedMany | Handled
    """What the call would have returned of these."""

class RejectedError(SplitcoreError):
    """An arrival was not accepted; nothing is kept of it."""

    reason: str
    """Why, in a word.

    ``"requests_max"``, ``"too_large"``, ``"no_machine"``, ``"overloaded"``, ``"pin_unavailable"``, ``"headroom"``,
    ``"ttft_slo"``, ``"tbt_slo"``, or ``"recovering"`` in the grace time after a restart.
    """
    request_id: int
    """The id that was given to `Cluster.place`."""

class UnknownIdError(SplitcoreError):
    """There is no such machine or request here."""

    kind: Literal["machine", "request"]
    """What was looked up."""
    id: str | int
    """The machine's name (its row, when an event named it) or the request's id."""

class DuplicateRequestError(SplitcoreError):
    """A request of this id is live."""

    request_id: int
    """The id."""

class DuplicateMachineError(SplitcoreError):
    """A machine of this name is present."""

    machine: str
    """The name."""

class EventError(SplitcoreError):
    """An event cannot be applied; the state is as it was before."""

class SimulationStuckError(SplitcoreError):
    """Events go on but the run does not."""

    request_id: int
    """The oldest request that is pending."""

@final
class Leg:
    """The part of a request that one machine computes."""

    @property
    def machine(self) -> str | None:
        """Its name, or None while it is to be chosen later."""
    @property
    def start(self) -> int:
        """The first position, in tokens from the beginning of the prompt."""
    @property
    def upto(self) -> int | None:
        """The position after the last one, in tokens; None is the end of the output."""
    @property
    def kv(self) -> str | None:
        """Where the KV of earlier positions comes from: None or the name of the source machine."""

@final
class Why:
    """How a placement was found."""

    @property
    def prompt_step(self) -> str:
        """Where the prompt machine was found.

        ``"own"``, ``"mixed"`` or ``"opposite"`` is a pool, ``"least-of-all"`` is any, ``"pinned"`` is the caller's.
        """
    @property
    def token_step(self) -> str:
        """Where the token machine was found."""
    @property
    def prompt_load(self) -> int:
        """Load of the prompt machine before this request, in the policy's unit: booked tokens, or requests."""
    @property
    def token_load(self) -> int:
        """Load of the token machine before this request: KV tokens, booked tokens or requests."""
    @property
    def runner_up(self) -> str | None:
        """The machine that would have been next for the prompt."""

@final
class Placement:
    """Where a request runs."""

    @property
    def request_id(self) -> int:
        """The id that was given to `Cluster.place`."""
    @property
    def prompt(self) -> str:
        """The machine that prefills."""
    @property
    def token(self) -> str:
        """The machine that decodes; equal to `prompt` when the request is not split."""
    @property
    def transfer(self) -> Literal["serialized", "layer-wise"] | None:
        """How the KV cache moves, or None on one machine."""
    @property
    def attempt(self) -> int:
        """From 1; grows each time the request is placed again."""
    @property
    def why(self) -> Why:
        """How the placement was found."""
    @property
    def legs(self) -> tuple[Leg, ...]:
        """One or two."""

@final
class PlacedMany:
    """The placements of one `Cluster.place_many` call, in the order of its arguments."""

    @property
    def prompt(self) -> NDArray[np.int64]:
        """Rows of `Cluster.loads`, shape (n,); -1 where rejected."""
    @property
    def token(self) -> NDArray[np.int64]:
        """Rows of `Cluster.loads`, shape (n,); -1 where rejected."""
    @property
    def attempt(self) -> NDArray[np.uint32]:
        """Attempts, shape (n,); 0 where rejected."""

@final
class Recovery:
    """What became of the requests of a lost machine; one whose output was complete has simply finished."""

    @property
    def placed(self) -> list[int]:
        """Ids that run elsewhere now; `Cluster.poll` returns their placements."""
    @property
    def parked(self) -> list[int]:
        """Ids that wait for a machine."""
    @property
    def failed(self) -> list[int]:
        """Ids that ended: not resumable, or too many attempts."""

@final
class Polled:
    """What has happened without a call of its own."""

    @property
    def placements(self) -> list[Placement]:
        """Of parked requests and those of lost machines, in the order they were made; each still holds."""
    @property
    def expired(self) -> list[int]:
        """Ids whose lease ran out."""
    @property
    def unplaceable(self) -> list[int]:
        """Ids that ended because no machine that could hold them was known for `unplaceable_limit_s`."""

@final
class Handled:
    """The result of one `Cluster.handle` or `Machine.handle` call."""

    @property
    def actions(self) -> list[dict[str, Any]]:
        """What the driver is to do, in order."""
    @property
    def errors(self) -> list[tuple[int, SplitcoreError]]:
        """Index and error of each event that could not be applied."""
    @property
    def late(self) -> int:
        """Events whose attempt was not the live one."""

@final
class Snapshot:
    """The whole state of a `Cluster` or a `Machine` at one moment."""

@final
class Cluster:
    """Chooses machines for requests and keeps the books. Safe to share between threads.

    A call's `now_ns` counts from an origin of the caller's choice; one below the last seen is raised to it. None
    reads a monotonic clock that starts with the cluster, so give it in all calls or in none. What is due by then,
    such as a lease that ran out, happens first.
    """

    def __new__(
        cls,
        *,
        policy: str = "splitwise",
        level: str = "external",
        prompt_pending_tokens_max: int = 8192,
        kv_fill_max: float = 0.95,
        mixed_return: str = "drained",
        mixed_hold_s: float = 0.0,
        reserve: str = "at-arrival",
        cut: str = "at-prompt",
        transfer: str = "auto",
        kv_bytes_per_token: int | None = None,
        split_from_tokens: int = 0,
        ties: str = "first",
        requests_max: int = 1_000_000,
        admission: str = "bounds",
        recovery_headroom: float = 0.0,
        priority_ageing_s: float | None = 10.0,
        attempts_max: int = 4,
        transfer_failures_max: int = 3,
        aside_s: float = 30.0,
        retry_interval_s: float = 1.0,
        park_limit_s: float = 30.0,
        unplaceable_limit_s: float = 60.0,
        report_limit_s: float = 30.0,
        rejoin_limit_s: float = 5.0,
        hedge_after_s: float | None = 0.5,
        lease_s: float | None = None,
        epoch: int = 1,
        grace_s: float = 0.0,
        seed: int = 0,
    ) -> Self:
        """Make an empty cluster.

        Args:
            policy: ``"splitwise"``, ``"jsq"``, ``"least-requests"``, ``"round-robin"`` or ``"power-of-two"``.
            level: ``"external"`` when the caller tells by call what its engines do; ``"managed"`` when every machine
                is a `Machine` and `handle` carries the messages.
            prompt_pending_tokens_max: A prompt machine is passed over beyond this many pending tokens.
            kv_fill_max: A token machine is passed over beyond this share of its KV tokens.
            mixed_return: When a machine leaves the mixed pool: ``"drained"`` or ``"idle"``.
            mixed_hold_s: Seconds that a machine stays in the mixed pool at least.
            reserve: When KV blocks are reserved: ``"at-arrival"`` or ``"at-source-done"``.
            cut: Where a request is split: ``"at-prompt"`` or ``"before-last"``.
            transfer: ``"auto"``, ``"serialized"`` or ``"layer-wise"``.
            kv_bytes_per_token: KV bytes of one token, for ``"auto"``; unknown, or with unknown links, it is layer-wise
                from 512 tokens on.
            split_from_tokens: Prompts of fewer tokens run whole, on the machine that ``"jsq"`` would choose.
            ties: Which of equally loaded machines is taken: in ``"turn"``, the ``"first"`` or the ``"last"`` in pool
                order.
            requests_max: Arrivals are rejected beyond this many live requests.
            admission: What arrivals are held against: ``"bounds"`` alone, or also the limits of `set_slo`: ``"early"``
                by what the chosen machines have to do now, ``"predicted"`` by what they will have to do when the
                prompt is computed. Both need the ``costs`` of `add_machine`.
            recovery_headroom: Share, 0 to 0.999, of `requests_max` and of the KV tokens of all machines that arrivals
                leave free for work that comes back after faults.
            priority_ageing_s: Waiting this many seconds outweighs one step of priority among parked requests; None:
                priority alone counts.
            attempts_max: A request fails after this many faults.
            transfer_failures_max: A machine whose KV transfers have failed this often in a row is set aside.
            aside_s: Seconds that no pair is made with a machine that was set aside; it is tried again after them.
            retry_interval_s: Level ``"managed"``: second legs without a machine are tried again at least this often,
                in seconds.
            park_limit_s: Level ``"managed"``: seconds that a request may hold blocks on one machine and wait for
                another, before it is taken back and placed whole.
            unplaceable_limit_s: Seconds after which a parked request ends that no machine known could hold; one that
                may yet be back is known.
            report_limit_s: Seconds that a machine's report counts without a further one; then what was booked counts.
            rejoin_limit_s: Level ``"managed"``: seconds after which a machine whose session ended counts as lost.
            hedge_after_s: Level ``"managed"``: seconds without a session after which what a machine has begins its next
                attempt elsewhere, in case the machine does not come back; None: only when it counts as lost.
            lease_s: Seconds after which a placement that no call touched expires; None never does.
            epoch: Which cluster of its service it is, 0 to 2^32 - 1: one more than the last after a restart. Machines
                refuse commands of an older one.
            grace_s: After a restart, seconds from the first call on in which machines register and arrivals are
                rejected as ``"recovering"``; 0 waits for nobody.
            seed: Of the random draws of ``"power-of-two"``.

        Raises:
            ConfigError: If an argument is out of range.
        """

    def add_machine(
        self,
        name: str,
        *,
        role: str,
        kv_blocks: int,
        block_tokens: int = 16,
        speed_weight: int = 1,
        link_bandwidth: float | None = None,
        transfer_fixed_cost_s: float = 0.005,
        costs: CostTable | None = None,
        now_ns: int | None = None,
    ) -> int:
        """Add a machine; it can be given requests at once.

        The name of a lost machine gets its row again, and what is still told of its requests is late.

        Args:
            name: Unique among the machines that are present.
            role: ``"prompt"``, ``"token"`` or ``"mixed"``; an unsplit cluster has mixed machines only.
            kv_blocks: KV blocks of the machine.
            block_tokens: Tokens of a block.
            speed_weight: Loads are divided by it when machines are compared.
            link_bandwidth: Bytes per second, each way; None is unknown.
            transfer_fixed_cost_s: What a layer-wise transfer takes at least.
            costs: What its passes take, a dict; None: nothing is predicted of it.
            now_ns: Time of the call in nanoseconds; None reads the monotonic clock.

        Returns:
            The machine's row in `loads`.

        Raises:
            ConfigError: If an argument is out of range.
            DuplicateMachineError: If the name is taken.
        """

    def drain_machine(self, name: str, now_ns: int | None = None) -> None:
        """Give the machine no more requests; those it has go on.

        Args:
            name: The machine.
            now_ns: Time of the call in nanoseconds.

        Raises:
            UnknownIdError: If there is no such machine.
        """

    def undrain_machine(self, name: str, now_ns: int | None = None) -> None:
        """Give the machine requests again: takes a drain back.

        Args:
            name: The machine.
            now_ns: Time of the call in nanoseconds.

        Raises:
            UnknownIdError: If there is no such machine.
        """

    def lose_machine(self, name: str, now_ns: int | None = None) -> Recovery:
        """Take the machine out and place its requests again.

        Args:
            name: The machine.
            now_ns: Time of the call in nanoseconds.

        Returns:
            What became of its requests.

        Raises:
            UnknownIdError: If there is no such machine.
        """

    def set_slo(
        self,
        slo_class: int,
        *,
        ttft_s: float | None = None,
        tbt_s: float | None = None,
        now_ns: int | None = None,
    ) -> None:
        """Set the limits of a class of requests, for arrivals from here on and where `admission` looks at them.

        Args:
            slo_class: The class, as `place` takes it; 0 is that of requests without one.
            ttft_s: Seconds from arrival to the first token, at most; None is no limit.
            tbt_s: Seconds between two tokens, at most; None is no limit. With neither, the class has no limits.
            now_ns: Time of the call in nanoseconds.

        Raises:
            ConfigError: If a limit is not above zero.
        """

    def place(
        self,
        request_id: int,
        prompt_tokens: int,
        max_new_tokens: int,
        *,
        priority: int = 0,
        slo_class: int | None = None,
        resumable: bool = True,
        session: str | None = None,
        pin_token: str | None = None,
        prefix_hashes: Sequence[int] | None = None,
        dry_run: bool = False,
        now_ns: int | None = None,
    ) -> Placement:
        """Choose the machines of a new request and book its load.

        Args:
            request_id: Not in use by a live request.
            prompt_tokens: At least 1.
            max_new_tokens: At least 1; a cap, never used as a prediction.
            priority: Higher goes first among parked requests.
            slo_class: A number that groups requests: parked ones turn away arrivals of their own class only, and
                limits are set for a class. None is 0.
            resumable: Whether the request may be placed again when a machine is lost.
            session: A conversation. Accepted for later use; no policy looks at it yet.
            pin_token: The machine that must decode.
            prefix_hashes: Hashes of the prompt's full blocks. Accepted for later use; no policy looks at them yet.
            dry_run: Return the placement and book nothing.
            now_ns: Time of the call in nanoseconds.

        Returns:
            The placement.

        Raises:
            RejectedError: If the request is not accepted.
            DuplicateRequestError: If the id is live.
            UnknownIdError: If `pin_token` is no machine.
            ConfigError: If a count is out of range.
        """

    def place_many(
        self,
        request_ids: Sequence[int] | NDArray[np.uint64],
        prompt_tokens: Sequence[int] | NDArray[np.uint32],
        max_new_tokens: Sequence[int] | NDArray[np.uint32] | None = None,
        *,
        now_ns: int | None = None,
    ) -> PlacedMany:
        """Place requests in order, as the same `place` calls at one time would.

        The whole batch is looked through first: on an error nothing is placed.

        Args:
            request_ids: Shape (n,).
            prompt_tokens: Shape (n,).
            max_new_tokens: Shape (n,); None is 1 each, so that only prompts that can never fit are rejected.
            now_ns: Time of the call in nanoseconds.

        Returns:
            Machines and attempts, -1 where rejected.

        Raises:
            ConfigError: If the lengths differ or a number is out of range; it names the argument and the index.
            DuplicateRequestError: If an id is live or occurs twice.
            CallInterrupted: After Ctrl-C; it has what was placed until then, which stays placed.
        """

    def prefill_done(self, request_id: int, *, attempt: int | None = None, now_ns: int | None = None) -> bool:
        """Tell that the prompt is computed and the first token is there.

        Args:
            request_id: The request.
            attempt: Of the placement; None is the live one.
            now_ns: Time of the call in nanoseconds.

        Returns:
            Whether it applied; False when it is late.
        """

    def progress(self, request_id: int, tokens: int, *, attempt: int | None = None, now_ns: int | None = None) -> bool:
        """Tell how many output tokens there are.

        Args:
            request_id: The request.
            tokens: Output tokens the client has so far, the first and those of earlier attempts included.
            attempt: Of the placement; None is the live one.
            now_ns: Time of the call in nanoseconds.

        Returns:
            Whether it applied; False when it is late.
        """

    def finish(self, request_id: int, *, attempt: int | None = None, now_ns: int | None = None) -> bool:
        """Tell that the output has ended.

        Args:
            request_id: The request.
            attempt: Of the placement; None is the live one.
            now_ns: Time of the call in nanoseconds.

        Returns:
            Whether it applied; False when it is late.
        """

    def cancel(self, request_id: int, *, attempt: int | None = None, now_ns: int | None = None) -> bool:
        """End a request before its output does.

        Args:
            request_id: The request.
            attempt: Of the placement; None is the live one.
            now_ns: Time of the call in nanoseconds.

        Returns:
            Whether it applied; False when it is late.
        """

    def source_released(self, request_id: int, *, attempt: int | None = None, now_ns: int | None = None) -> bool:
        """Tell that the prompt machine has freed its KV blocks.

        Args:
            request_id: The request.
            attempt: Of the placement; None is the live one.
            now_ns: Time of the call in nanoseconds.

        Returns:
            Whether it applied; False when it is late.
        """

    def poll(self, now_ns: int | None = None) -> Polled:
        """Collect what has happened since the last call and was not returned by another.

        As many expired ids are kept as requests can be live; who never polls loses the oldest.

        Args:
            now_ns: Time of the call in nanoseconds.

        Returns:
            Placements of requests that were parked or lost their machine, and ids that expired or had no machine.
        """

    def renew(self, request_ids: Sequence[int] | NDArray[np.uint64], now_ns: int | None = None) -> int:
        """Extend the leases of requests.

        Args:
            request_ids: The requests, a sequence or array.
            now_ns: Time of the call in nanoseconds.

        Returns:
            How many of them are live.

        Raises:
            ConfigError: If an id is out of range.
        """

    @property
    def epoch(self) -> int:
        """Which cluster of its service it is; a machine's ``command`` events carry it beside what `handle` returns."""
    @property
    def is_recovering(self) -> bool:
        """Whether the grace time after a restart goes on, as of the last call with a time."""

    def loads(self) -> NDArray[np.void]:
        """Read the books of all machines.

        Returns:
            A read-only structured array, one row per machine: ``machine`` and ``incarnation`` (u4), ``role`` and
            ``pool`` (u1; 0 prompt, 1 token, 2 mixed), ``state`` (u1; 0 up, 1 draining, 2 lost, 3 away, 4 quarantined),
            ``prompt_pending_tokens`` (u8), ``requests`` (u4), ``booked_load``, ``kv_tokens`` and
            ``kv_capacity_tokens`` (u8). A machine is away while its session is broken, and quarantined while too many
            of its blocks wait for a silent writer; both get no work meanwhile.
        """

    def machine_names(self) -> list[str]:
        """List the names of the machines, in the order of `loads`.

        One that joined or registered by event is ``"machine-<row>"``, as is a row below it that no machine has taken
        yet: it counts as lost, so `add_machine` can take it by that name. All calls take these names.
        """

    def check(self) -> None:
        """Recount everything and compare with the books.

        Raises:
            SplitcoreError: If they differ; it says where.
        """

    def counters(self) -> dict[str, int]:
        """Read the counters, each by its name; they only grow."""

    def snapshot(self) -> Snapshot:
        """Copy the whole state."""

    def restore(self, snapshot: Snapshot) -> None:
        """Take a copied state back; the same calls then give the same results.

        Args:
            snapshot: Of a cluster.

        Raises:
            SplitcoreError: If it is a machine's.
        """

    def handle(self, events: Sequence[dict[str, Any]], *, now_ns: int | None = None) -> Handled:
        """Apply events in order; one that fails changes nothing and the next goes on.

        Machines are named by ``index`` (their row) and ``incarnation``. At level ``"managed"``, what other calls since
        the last one want done comes first.

        A session with a machine begins with ``{"type": "register", "join": {"machine", "role", "kv_capacity_tokens",
        "speed_weight", "link"}, "epoch", "report", "claims"}``, the last three from the `Machine`; what is done is
        ``{"type": "registered", "to", "epoch"}``, which the machine gets as ``{"type": "registered", "epoch"}``, and
        commands. When it ends without a word, ``{"type": "disconnect", "machine"}`` tells so.

        Args:
            events: Each with its ``type`` and fields.
            now_ns: Time of the call in nanoseconds.

        Returns:
            Actions, errors and the number of late events.

        Raises:
            CallInterrupted: After Ctrl-C; it has what came of the events until then, which stay applied.
        """

    def next_deadline_ns(self) -> int | None:
        """Tell when the next timeout is due, in nanoseconds, or None."""

@final
class Machine:
    """Batches the requests of one machine and keeps its KV blocks. Safe to share between threads."""

    def __new__(
        cls,
        *,
        kv_blocks: int,
        block_tokens: int = 16,
        machine: int = 0,
        incarnation: int = 1,
        batch_tokens_max: int = 2048,
        batch_requests_max: int = 512,
        prefill_chunk_tokens: int | None = None,
        pipeline_stages: int = 1,
        sit_out_max: int = 4,
        evictions_max: int = 4,
        report_interval_s: float = 1.0,
        handoff_floor_blocks: int | None = None,
        quarantine_limit: float = 0.1,
        transfer_limit_s: float | None = 20.0,
        park_limit_s: float = 30.0,
        orphan_limit_s: float | None = 120.0,
        sends_max: int | None = None,
        receives_max: int | None = None,
    ) -> Self:
        """Make an empty machine.

        Args:
            kv_blocks: KV blocks of the machine.
            block_tokens: Tokens of a block.
            machine: Its row in the cluster.
            incarnation: Grows with each restart.
            batch_tokens_max: Tokens of one pass; a single longer prompt runs alone.
            batch_requests_max: Requests of one pass.
            prefill_chunk_tokens: Prompt tokens of one pass; longer prompts are computed in chunks. None computes them
                whole.
            pipeline_stages: Passes that may be in flight; with more than one, ``{"type": "stage_free", "pass"}`` tells
                that the engine's first stage is free for the next.
            sit_out_max: Passes in a row that a decode may be left out.
            evictions_max: A request is spared after this many.
            report_interval_s: Seconds between two reports.
            handoff_floor_blocks: Blocks kept for incoming handoffs; None is as many as the largest so far took.
            quarantine_limit: With more than this share of its blocks, 0 to 1, in quarantine it asks for no new work.
            transfer_limit_s: A transfer that has not ended this many seconds after it could is stopped and has failed;
                None is no limit.
            park_limit_s: Work that found no room for this many seconds while nothing else ran is given back.
            orphan_limit_s: Without a cluster for this many seconds it drops all it holds; None waits for ever.
            sends_max: Transfers it sends at once; further ones wait in order. None is no bound.
            receives_max: Transfers it receives at once; further ones wait in order. None is no bound.

        Raises:
            ConfigError: If an argument is out of range.
        """

    def handle(self, events: Sequence[dict[str, Any]], *, now_ns: int | None = None) -> Handled:
        """Apply events in order; one that fails changes nothing and the next goes on.

        What is due by then follows the events: an idle machine starts its pass with all that one call brought.

        When the session with the cluster ends, ``{"type": "cluster_lost"}`` tells so: it runs on and has nothing to
        tell until ``{"type": "registered", "epoch"}``. When the session with another machine is replaced by a new one,
        ``{"type": "peer_reset", "machine"}`` does; when that incarnation is gone, ``{"type": "peer_lost", "machine"}``.

        Args:
            events: Each with its ``type`` and fields.
            now_ns: Time of the call in nanoseconds.

        Returns:
            Actions, errors and the number of late events.

        Raises:
            CallInterrupted: After Ctrl-C; it has what came of the events until then, which stay applied.
        """

    def next_deadline_ns(self) -> int | None:
        """Tell when the next timeout is due, in nanoseconds, or None."""

    def plan(self) -> dict[str, Any]:
        """Read the batch of the pass that started last.

        Returns:
            ``pass``, ``prefills``, ``decodes``, ``puts``, ``prompt_tokens``, ``context_tokens``,
            ``context_tokens_max`` and ``decodes_version``, which grows when ``decodes`` differs from the pass before.
        """

    def blocks(self, request_id: int, attempt: int = 1) -> list[int]:
        """Read the KV blocks of a request, in position order.

        Args:
            request_id: The request.
            attempt: Of the placement.

        Returns:
            Block indices, from 0.

        Raises:
            UnknownIdError: If the machine does not hold the request.
        """

    def claims(self) -> list[dict[str, Any]]:
        """Read all it holds, as a ``register`` event carries it.

        Returns:
            By key: ``key``, ``order``, ``work`` and ``held``, which is ``{"leg": {"state", "mode"}}``, ``"closing"``,
            ``"finished"`` or ``"kept"``.
        """

    @property
    def epoch(self) -> int:
        """The newest cluster it has spoken to; 0 before the first."""

    def report(self) -> dict[str, Any]:
        """Read what it would report to its cluster now.

        Returns:
            ``seq``, the last assignment it has had; ``kv_tokens``; ``free_blocks``; ``legs``; ``running``;
            ``quarantined_blocks``; and ``over_quarantine``, whether those are more than `quarantine_limit` allows.
        """

    def loads(self) -> dict[str, int]:
        """Read queue lengths and block counts; free, held, cached and quarantined blocks add up to the total."""

    def counters(self) -> dict[str, int]:
        """Read the counters, each by its name; they only grow."""

    def check(self) -> None:
        """Recount everything and compare with the books.

        Raises:
            SplitcoreError: If they differ; it says where.
        """

    def snapshot(self) -> Snapshot:
        """Copy the whole state."""

    def restore(self, snapshot: Snapshot) -> None:
        """Take a copied state back; the same calls then give the same results.

        Args:
            snapshot: Of a machine.

        Raises:
            SplitcoreError: If it is a cluster's.
        """

@final
class Report:
    """The result of one simulated run."""

    @property
    def summary(self) -> Summary:
        """Everything in numbers; ready for JSON."""
    @property
    def requests(self) -> NDArray[np.void]:
        """One row per submitted request, in order of arrival.

        Fields: ``request_id`` (u8), ``arrival_s``, ``ttft_s``, ``tbt_mean_s``, ``tbt_max_s``, ``e2e_s`` and the
        slowdowns ``ttft_slowdown``, ``tbt_slowdown``, ``e2e_slowdown`` (f8), ``prompt_tokens`` and
        ``output_tokens`` (u4), ``prompt_machine`` and ``token_machine`` (i4, indices of `machine_names` or -1),
        ``attempts`` (u4) and ``outcome`` (u4; 0 finished, 1 rejected, 2 failed, 3 cancelled, 4 unfinished).
        Infinity where the request did not finish, NaN where it has no such value. Read-only.
        """
    @property
    def timeline(self) -> dict[str, NDArray[np.float64]]:
        """Batch sizes over time, arrays of one length.

        ``t_s`` is the start of each bin; for each pool ``<pool>_decodes`` and ``<pool>_prompt_tokens`` are means
        per machine over the bin's time, in which an idle machine counts as 0.
        """
    @property
    def machine_names(self) -> list[str]:
        """The machines by index."""
    def write_requests_csv(self, path: str | PathLike[str]) -> None:
        """Write `requests` as CSV, with a header, machines and outcomes by name, and empty cells for no value.

        Args:
            path: The file; it is replaced.

        Raises:
            SplitcoreError: If it cannot be written.
        """

def simulate(config: dict[str, Any], progress: Callable[[int, int], None] | None) -> Report:
    """Simulate a workload; `splitcore.simulate` documents the options.

    Args:
        config: Options by name; a missing one has its default.
        progress: Called now and then with the requests that have ended and the total.

    Returns:
        The report.

    Raises:
        ConfigError: If an option is out of range or unknown.
        InputError: If a line of a file is bad.
        SimulationStuckError: If the run goes in circles; it names a request that is stuck.
    """

def profile_fit(csv_path: str | PathLike[str], out_path: str | PathLike[str]) -> dict[str, dict[str, float]]:
    """Fit a cost profile to measurements and write it.

    Args:
        csv_path: One row per measurement: model, hardware, prompt_size, batch_size, token_size, prompt_time and
            token_time (milliseconds), tensor_parallel.
        out_path: The profile, for the ``profile`` option of `splitcore.simulate`; it is replaced.

    Returns:
        The mean absolute error of the fit as a share of the measured time, by model and machine, then by phase
        (``"prefill"``, ``"decode"``). Labels read as ``"bloom-176b a100-80gb:tp8"``.

    Raises:
        ConfigError: If both paths lead to one file.
        InputError: If a line is bad.
        SplitcoreError: If a file cannot be read or written.
    """

def serve(options: Mapping[str, object]) -> None:
    """Serve placements over HTTP until SIGTERM or Ctrl-C; other Python threads run meanwhile.

    Call it on the main thread. From the first signal on nothing new is placed; it returns when nothing lives any more,
    after ``drain_s``, or at the second signal.

    Args:
        options: By name as in ``docs/daemon.md``, with underscores; those left out have their defaults.

    Raises:
        ConfigError: If an option is out of its range.
        SplitcoreError: If an option is unknown or of a wrong type, or the address is not free.
        KeyboardInterrupt: After Ctrl-C.
    """

def replay(folder: str | PathLike[str], *, progress: Callable[[int, int], object] | None = None) -> Replayed:
    """Apply the events of every log under a folder once more and compare what comes of them.

    Logs are written by services that are told to. Each segment of one begins with the state, which must be the one
    that the segment before came to; each event must bring the same answer and the same actions. A log that just stops,
    as that of a killed process does, ends there. Ctrl-C works between segments.

    Args:
        folder: With a folder of logs for each name in it, or one of these.
        progress: Called now and then with the segments that have been replayed and the total; what it raises ends it.

    Returns:
        What was found; a log that differs is in its ``logs`` and no error.

    Raises:
        SplitcoreError: If a log cannot be read, is not what was written or has a gap; it names file and place.
    """

def swarm(
    *,
    seeds: int = 300,
    from_seed: int = 0,
    jobs: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> SwarmSummary:
    """Run random worlds full of faults around the scheduler and check every invariant after every event.

    A world is one cluster, some machines, sessions, engines, transfers and clients, all drawn from the seed, and all
    of it fails: see ``docs/failures.md``. Afterwards it heals, and every accepted request must end. The same seeds
    always give the same result, whatever `jobs` is. Ctrl-C works between seeds.

    Args:
        seeds: How many, at least 1.
        from_seed: The first of them, 0 to 2^64 - 1.
        jobs: Threads, 1 to 1024; None is one for each processor.
        progress: Called now and then with the seeds that have ended and the total; what it raises ends the run.

    Returns:
        What was found; a seed that failed is in its ``failed`` and no error.

    Raises:
        ConfigError: If an argument is out of range.
    """

@final
class Cache:
    """Verdicts kept in a file, so that a search that was interrupted goes on and a wider one reuses what is known."""

    def __new__(cls, path: str | PathLike[str]) -> Self:
        """Open or begin a file.

        Args:
            path: The file.

        Raises:
            SplitcoreError: If it cannot be read or written, or is no cache.
        """

    def get(self, probe: Probe) -> Verdict | None:
        """Look a probe's verdict up.

        Args:
            probe: It.

        Raises:
            ConfigError: If the probe cannot be read.
        """

    def put(self, probe: Probe, verdict: Verdict) -> None:
        """Keep a probe's verdict; it is in the file when this returns.

        Args:
            probe: It.
            verdict: Of `judge`.

        Raises:
            ConfigError: If the probe cannot be read.
            SplitcoreError: If the file cannot be written.
        """

@final
class Search:
    """A search whose probes are made elsewhere: `ask`, `judge` each probe anywhere, `tell`, until nothing is asked.

    Its answer hangs on the verdicts alone, so it is the same on any number of threads and machines.
    """

    @staticmethod
    def capacity(spec: dict[str, Any]) -> Search:
        """Begin a search for the highest rate of a cluster.

        Args:
            spec: As `splitcore.planning.capacity_spec` makes it.

        Raises:
            ConfigError: If an option is out of range; it names the option.
        """

    @staticmethod
    def provision(spec: dict[str, Any]) -> Search:
        """Begin a search for the best cluster.

        Args:
            spec: As `splitcore.planning.plan_spec` makes it.

        Raises:
            ConfigError: If an option is out of range; it names the option.
        """

    @staticmethod
    def placement(spec: dict[str, Any]) -> Search:
        """Begin a search for a placement.

        Args:
            spec: As `placement` takes it.

        Raises:
            ConfigError: If an option is out of range; it names the option.
        """

    def ask(self) -> list[Probe]:
        """Ask what to judge next: the same probes until they are told, and none when the search is over."""

    def tell(self, verdicts: list[Verdict]) -> None:
        """Tell what came of all probes asked for.

        Args:
            verdicts: In the order of the probes.

        Raises:
            SplitcoreError: If there are more or fewer than were asked for.
        """

    def progress(self) -> tuple[int, int]:
        """Count the probes judged, and those there will be as far as can be told."""

    def found(self) -> dict[str, Any]:
        """Tell what has been found: the answer once nothing more is asked."""

def judge(probe: Probe) -> Verdict:
    """Simulate a probe and hold it against its objectives; the verdict is the same on every machine.

    Args:
        probe: From `Search.ask`.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a file is bad.
        SimulationStuckError: If the run goes in circles; it names a request that is stuck.
    """

def capacity(
    spec: dict[str, Any], jobs: int | None, cache: Cache | None, progress: Callable[[int, int], object] | None
) -> Capacity:
    """Find the highest rate at which a cluster keeps its objectives; `splitcore.capacity` documents the options.

    Args:
        spec: What to search for.
        jobs: Runs made at a time; None is one for each processor.
        cache: Where verdicts are kept.
        progress: Called now and then with the runs made and those there will be.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a file is bad.
        SplitcoreError: If the cache cannot be written.
    """

def provision(
    spec: dict[str, Any], jobs: int | None, cache: Cache | None, progress: Callable[[int, int], object] | None
) -> Plan:
    """Find the best cluster of several designs; `splitcore.plan` documents the options.

    Args:
        spec: What to search for.
        jobs: Runs made at a time; None is one for each processor.
        cache: Where verdicts are kept.
        progress: Called now and then with the runs made and those there will be.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a file is bad.
        SplitcoreError: If the cache cannot be written.
    """

def placement(
    spec: dict[str, Any], jobs: int | None, cache: Cache | None, progress: Callable[[int, int], object] | None
) -> dict[str, Any]:
    """Find how to cut a model over GPUs for each phase, by DistServe's algorithms.

    Args:
        spec: ``options``, ``slo``, ``affinity`` (``"high"`` or ``"low"``), ``machine``, ``nodes_max``,
            ``gpus_per_node``, ``node_bandwidth_bytes_per_s``, ``rate_rps``, ``seeds`` and ``resolution``.
        jobs: Runs made at a time; None is one for each processor.
        cache: Where verdicts are kept.
        progress: Called now and then with the runs made and those there will be.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a file is bad.
        SplitcoreError: If the cache cannot be written.
    """

def published_pools(design: str, comparison: str, trace: str) -> tuple[int, int, float | None]:
    """Tell the pool sizes of a design in one of the Splitwise paper's comparisons.

    Args:
        design: As ``"splitwise-hh"``.
        comparison: ``"iso-power"``, ``"iso-cost"`` or ``"iso-throughput"``.
        trace: ``"azure-conv"`` or ``"azure-code"``.

    Returns:
        Prompt machines, or all of an unsplit cluster; token machines; and the highest rate that the public simulator
        has for them, if any.

    Raises:
        ConfigError: If none are published.
    """

def design_presets() -> list[dict[str, str | None]]:
    """List the designs that have a name, with what they are about and their machines by pool."""

def slo_set(name_or_path: str) -> SloSet:
    """Read a set of objectives.

    Args:
        name_or_path: The name of a built-in set, or a TOML file.

    Raises:
        ConfigError: If there is no such set.
        InputError: If the file is malformed; it names line and field.
    """

def mean_interval(values: list[float]) -> tuple[float, Interval | None]:
    """Tell the mean of independent values and its 95 % interval by Student's t, None of a single value.

    Args:
        values: At least one.

    Raises:
        ConfigError: If there is none.
    """

def traffic_classes(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Read a file of traffic classes.

    Args:
        path: A TOML file, with a ``[[class]]`` for each.

    Returns:
        They, as plain data: the ``classes`` of a run.

    Raises:
        InputError: If the file is malformed; it names the line.
        SplitcoreError: If it cannot be read.
    """

def machine_types(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Read a file of machine types.

    Args:
        path: A TOML file, with a table ``[machine.NAME]`` for each.

    Returns:
        They, as plain data: the ``machine_types`` of a run.

    Raises:
        InputError: If the file is malformed; it names line and field.
        SplitcoreError: If it cannot be read.
    """

def machine_price(machine: str, prices: str, machine_types: Sequence[Mapping[str, Any]]) -> Price:
    """Tell what a machine takes.

    Args:
        machine: As ``"dgx-a100:tp4"``.
        prices: The name of a price table, for what the machine's own type does not say.
        machine_types: The user's, beside the built-in ones.

    Raises:
        ConfigError: If there is no such machine or table, or its price is not known.
    """

class TransferError(SplitcoreError):
    """KV cannot be moved, or was not; a transfer, or one call of it."""

    kind: str
    """What happened, in a word.

    ``"timeout"``, ``"stopped"``, ``"peer-lost"``, ``"stalled"``, ``"unknown"``, ``"no-such-layer"``, ``"published"``,
    ``"refused"``, ``"overlap"``, ``"outside-source"``, ``"incomplete"``, ``"still-put"``, ``"corrupt"``,
    ``"denied"``, ``"not-fenced"``, ``"no-slot"``, ``"busy"``, ``"protocol"``, ``"io"``, ``"device"``, ``"memory"`` or
    ``"closed"``.
    """
    key: TransferKey | None
    """Of which transfer."""
    layer: int | None
    """At which layer."""

class HandshakeError(SplitcoreError):
    """A sender and a receiver do not come together."""

    kind: str
    """``"mismatch"``, ``"no-backend"``, ``"refused"``, ``"malformed"``, ``"timeout"`` or ``"io"``."""
    field: str | None
    """What does not agree."""

@final
class KvLayout:
    """How one tensor-parallel rank of a machine lays out KV; a value."""

    def __new__(
        cls,
        *,
        layers: int,
        heads: int | None = None,
        head_dim: int | None = None,
        block_tokens: int,
        dtype: str = "f32",
        latent_dim: int | None = None,
        order: str = "HND",
        planes: str = "together",
        arrangement: str = "layer_first",
        tp_rank: int | None = None,
        tp_size: int | None = None,
    ) -> Self:
        """Describe a layout.

        Args:
            layers: Layers of the model.
            heads: KV heads of the whole model, not of this rank.
            head_dim: Elements of one head.
            block_tokens: Tokens of a block.
            dtype: ``"f32"``, ``"f16"``, ``"bf16"``, ``"f8e4m3"``, ``"f8e5m2"`` or ``"i8"``.
            latent_dim: Elements of the one vector of latent attention, instead of heads and head_dim.
            order: ``"HND"`` has the tokens of a head together, ``"NHD"`` the heads of a token.
            planes: ``"together"`` has V in the block after K, ``"apart"`` in a plane of its own.
            arrangement: ``"layer_first"`` or ``"block_first"``: what varies slower in memory.
            tp_rank: Which rank, from 0; 0 by default.
            tp_size: Of how many; 1 by default.

        Raises:
            ConfigError: If no pool can have it.
        """
    @property
    def layers(self) -> int:
        """Layers of the model."""
    @property
    def heads(self) -> int | None:
        """KV heads of the model; None for latent attention."""
    @property
    def head_dim(self) -> int | None:
        """Elements of one head; None for latent attention."""
    @property
    def latent_dim(self) -> int | None:
        """Elements of the vector of latent attention; None for heads."""
    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
    @property
    def dtype(self) -> str:
        """The element's type."""
    @property
    def dtype_bytes(self) -> int:
        """Bytes of an element."""
    @property
    def order(self) -> str:
        """The order within a block."""
    @property
    def planes(self) -> str:
        """Where V lies."""
    @property
    def arrangement(self) -> str:
        """What varies slower."""
    @property
    def tp_rank(self) -> int:
        """Which rank."""
    @property
    def tp_size(self) -> int:
        """Of how many."""
    @property
    def heads_here(self) -> tuple[int, int]:
        """The first head of this rank, and how many it has."""
    @property
    def plane_count(self) -> int:
        """2 for K and V, 1 for latent attention."""
    @property
    def row_bytes(self) -> int:
        """Bytes of one head of one token, K or V."""
    @property
    def layer_block_bytes(self) -> int:
        """Bytes of a block in one layer, K and V."""
    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers."""
    def blocks_for(self, tokens: int) -> int:
        """Count the blocks that so many tokens take."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...

@final
class TransferPlan:
    """What one source rank copies to one destination rank."""

    @property
    def layers(self) -> int:
        """Layers of the model."""
    @property
    def tokens(self) -> int:
        """How many positions it covers."""
    @property
    def span(self) -> tuple[int, int]:
        """The first position, and the one after the last."""
    @property
    def bytes(self) -> int:
        """Bytes of all layers."""
    @property
    def layer_bytes(self) -> int:
        """Bytes of each layer."""
    @property
    def is_empty(self) -> bool:
        """Whether this source rank sends nothing to this destination rank."""
    def ranges(self, layer: int) -> NDArray[np.uint32]:
        """Give the ranges of a layer, an array ``(n, 5)``: block and offset there, block and offset here, bytes.

        The first two columns are the source's, the next two the destination's. No two ranges could be one.

        Raises:
            ConfigError: If there is no such layer.
        """
    def whole(self) -> NDArray[np.uint32]:
        """Give the ranges of all layers, merged where layers are contiguous on both sides."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

def plan_transfer(
    *,
    source: KvLayout,
    source_blocks: int,
    source_table: Sequence[int] | NDArray[np.uint32],
    dest: KvLayout,
    dest_blocks: int,
    dest_table: Sequence[int] | NDArray[np.uint32],
    tokens: int | tuple[int, int],
) -> TransferPlan:
    """Plan what the rank of `source` copies to the rank of `dest`.

    Args:
        source: The source's layout.
        source_blocks: Blocks of its pool.
        source_table: Its blocks of the request, in position order from position 0.
        dest: The destination's layout.
        dest_blocks: Blocks of its pool.
        dest_table: Its blocks of the request, in position order from position 0.
        tokens: How many positions, or the first and the one after the last.

    Raises:
        ConfigError: If the layouts are of different models, a table is too short, names a block that is not there or
            (the destination's) one twice, or there is nothing to copy.
    """

def senders(source: KvLayout, dest: KvLayout) -> list[int]:
    """List the source ranks that send anything to the rank of `dest`; `source` may be any rank's.

    Raises:
        ConfigError: If the layouts are of different models.
    """

def new_incarnation() -> int:
    """Draw a number, in 1 to 2^63 - 1, for one life of a sender or receiver."""

def choose_backend(pool: Pool, endpoint: str, *, nixl: bool = False, backend: str | None = None) -> str:
    """Choose what carries bytes from a pool to a receiver.

    Raises:
        HandshakeError: If nothing does, or not the one that is forced.
    """

@final
class Pool:
    """Registered memory of KV blocks; `splitcore.transfer.KvPool` makes arrays and tensors of it."""

    @staticmethod
    def shared(layout: KvLayout, blocks: int) -> Pool:
        """Make memory that processes of this host can share, zeroed and touched."""
    @staticmethod
    def borrowed(layout: KvLayout, blocks: int, buffer: object) -> Pool:
        """Use writable contiguous memory of an object with the buffer protocol, and hold it."""
    @property
    def layout(self) -> KvLayout:
        """How KV lies in it."""
    @property
    def blocks(self) -> int:
        """How many blocks it has."""
    @property
    def bytes(self) -> int:
        """Its bytes."""
    @property
    def address(self) -> int | None:
        """Where it begins in this process, or None on a device."""
    @property
    def is_shared(self) -> bool:
        """Whether other processes of this host can map it."""
    @property
    def axes(self) -> tuple[list[int], list[int]]:
        """Length, and stride in bytes, of ``[layer][block][K, V][head][token][element]``."""
    def array(self) -> NDArray[np.uint8]:
        """Give every byte as a writable array over the pool's memory."""

def cuda_devices() -> int:
    """Count the CUDA devices that this process sees.

    Raises:
        TransferError: ``no CUDA driver: ...`` or ``no CUDA device: ...``.
    """

@final
class CudaPool:
    """Registered memory of KV blocks on a CUDA device, zeroed, which other processes of this host can open."""

    def __new__(cls, layout: KvLayout, blocks: int, ordinal: int | None = None) -> Self:
        """Allocate it, on device 0 by default.

        Raises:
            TransferError: If there is no driver, no such device or no memory left.
        """
    @property
    def pool(self) -> Pool:
        """The pool, for `Receiver` and `connect`."""
    @property
    def device_ptr(self) -> int:
        """Where it begins on the device."""
    @property
    def ordinal(self) -> int:
        """The device's number in this process."""
    @property
    def device(self) -> str:
        """The device's name in every process: ``GPU-`` and its UUID."""
    @property
    def description(self) -> str:
        """The device and its driver, in words."""
    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Its bytes, as an array of a device."""
    def read(self, offset: int, size: int) -> bytes:
        """Copy bytes out of it; this waits for no stream."""
    def write(self, offset: int, data: bytes) -> None:
        """Copy bytes into it."""
    def stream(self) -> CudaStream:
        """Make a stream on the device."""

@final
class CudaStream:
    """A stream of work on the device of a `CudaPool`, of which it is made."""

    @property
    def raw(self) -> int:
        """Its `CUstream`."""
    def copy(self, source: int, target: int, size: int) -> None:
        """Queue a copy within the pool, between two offsets."""
    def synchronize(self) -> None:
        """Sleep until all that was queued is done."""

@final
class TransferKey:
    """Names one transfer; a value."""

    def __new__(cls, request: int, slot: int, generation: int) -> Self:
        """Name the use `generation` of a receiver's slot."""
    @property
    def request(self) -> int:
        """The request's id; it is only carried."""
    @property
    def slot(self) -> int:
        """The receiver's slot."""
    @property
    def generation(self) -> int:
        """Which use of the slot, in 1 to 2^31 - 1."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs__(self) -> tuple[int, int, int]: ...

@final
class Grant:
    """A receiver's leave to write; plain data for the sender."""

    @staticmethod
    def from_json(text: str) -> Grant:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: If it is no grant.
        """
    def to_json(self) -> str:
        """Write it as JSON."""
    @property
    def key(self) -> TransferKey:
        """The transfer."""
    @property
    def receiver(self) -> int:
        """The receiver's incarnation."""
    @property
    def blocks(self) -> NDArray[np.uint32]:
        """The receiver's blocks, in position order."""
    @property
    def layer_bytes(self) -> int:
        """Bytes that the sender puts in each layer."""
    @property
    def token(self) -> str:
        """What shows that its bearer has this leave, in hexadecimal; not for logs."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class LayerSeal:
    """What a finished layer says of itself."""

    @property
    def tokens(self) -> int:
        """Tokens whose KV it holds."""
    @property
    def bytes(self) -> int:
        """Bytes written for it."""
    @property
    def crc32c(self) -> int | None:
        """The checksum over them, where the backend checks."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Arrival:
    """What a receiving side has to tell."""

    @property
    def kind(self) -> Literal["layers", "failed", "fenced"]:
        """What happened: layers are here, the rest will not come, or nothing is written any more."""
    @property
    def key(self) -> TransferKey:
        """Of which transfer."""
    @property
    def layers(self) -> int | None:
        """How many layers are here, from layer 0 without a gap."""
    @property
    def of(self) -> int | None:
        """Of how many."""
    @property
    def error(self) -> TransferError | None:
        """Why it failed."""

@final
class Completion:
    """The one end of a transfer at its sender: the blocks there are not read any more."""

    @property
    def kind(self) -> Literal["local-done", "fenced", "failed"]:
        """Every layer is published, it was stopped, or it failed."""
    @property
    def key(self) -> TransferKey:
        """Of which transfer."""
    @property
    def error(self) -> TransferError | None:
        """Why it failed."""

@final
class Receiver:
    """The native receiving half; use `splitcore.transfer.Receiver`."""

    def __new__(
        cls,
        pool: Pool,
        *,
        model: str,
        incarnation: int | None = None,
        slots: int | None = None,
        folder: str | PathLike[str] | None = None,
        local: bool = True,
        tcp: str | None = None,
        handshake_within_s: float = 5.0,
        connections_max: int | None = None,
        stall_limit_s: float = 10.0,
    ) -> Self:
        """Listen for senders."""
    @property
    def endpoint(self) -> str:
        """How it is reached, as JSON."""
    @property
    def incarnation(self) -> int:
        """This life of it."""
    @property
    def in_use(self) -> int:
        """Slots that are not free."""
    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
    def open(self, *, writer: int, request: int, blocks: Sequence[int] | NDArray[np.uint32], layer_bytes: int) -> Grant:
        """Let a writer write blocks."""
    def wait_layer(self, key: TransferKey, layer: int, timeout_s: float) -> LayerSeal:
        """Wait for a layer."""
    def settled(self, key: TransferKey, timeout_s: float) -> None:
        """Wait until every byte of a transfer is in place: over a device's pool, ask before trusting its layers."""
    def hold_stream(self, key: TransferKey, layer: int, stream: int) -> LayerSeal:
        """Let a `CUstream` of the pool's device go on only when a published layer is in place."""
    def landed(self, key: TransferKey) -> int:
        """Count the layers that are here."""
    def stop(self, key: TransferKey) -> None:
        """Give a transfer up."""
    def release(self, key: TransferKey) -> None:
        """Free a slot."""
    def poll(self) -> list[Arrival]:
        """Tell what has happened."""
    def wait(self, timeout_s: float) -> bool:
        """Wait for something to poll."""
    def writer_state(self, writer: int) -> str:
        """Say what is known of a writer."""
    def close(self) -> None:
        """End every connection."""
    def greeted(self, hello: str) -> int:
        """Check a sender's first message by NIXL, and say who it is."""
    def joined(self, writer: int) -> WriterStops:
        """Let a writer in that writes from outside this process."""
    def admits(self, writer: int, key: TransferKey, token: str) -> bool:
        """Say whether a writer has a transfer's grant, which its token shows, and may write it now."""
    def left(self, writer: int, gone: bool) -> None:
        """Take a writer's connection for over; `gone` if it writes no more."""
    def publish(self, writer: int, key: TransferKey, layer: int, *, tokens: int, size: int) -> None:
        """Make a layer visible whose bytes are all here."""
    def fenced(self, writer: int, key: TransferKey) -> None:
        """Take a writer's word that it writes no more for a stopped transfer."""

@final
class WriterStops:
    """What a writer outside this process is to be told."""

    def take(self) -> list[TransferKey]:
        """Give the transfers that it is to stop, since the last call."""
    @property
    def is_closed(self) -> bool:
        """Whether its connection is to end."""

def connect(
    pool: Pool,
    endpoint: str,
    *,
    model: str,
    incarnation: int | None = None,
    backend: str | None = None,
    within_s: float = 5.0,
    checksums: bool | None = None,
    connections: int | None = None,
    stall_limit_s: float = 10.0,
) -> Link:
    """Connect a pool to a receiver; use `splitcore.transfer.connect`."""

@final
class Link:
    """The native writing half; use `splitcore.transfer.Sender`."""

    @property
    def incarnation(self) -> int:
        """This life of the sender."""
    @property
    def backend(self) -> str:
        """What carries the bytes."""
    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
    @property
    def peer(self) -> str:
        """What is known of the receiver."""
    @property
    def remote(self) -> tuple[KvLayout, int]:
        """The receiver's layout and its blocks."""
    def begin(self, grant: Grant) -> None:
        """Begin a transfer."""
    def after(self, stream: int) -> None:
        """Let what is put from now on be copied after what a `CUstream` of the device was given so far."""
    def put(self, key: TransferKey, layer: int, ranges: NDArray[np.uint32]) -> None:
        """Send ranges of a layer."""
    def put_plan(self, key: TransferKey, layer: int, plan: TransferPlan) -> None:
        """Send a layer's ranges of a plan."""
    def publish(self, key: TransferKey, layer: int, tokens: int) -> None:
        """Make a layer visible."""
    def stop(self, key: TransferKey) -> None:
        """Give a transfer up."""
    def poll(self) -> list[Completion]:
        """Give the transfers that have ended."""
    def wait(self, timeout_s: float) -> bool:
        """Wait for an end to poll."""
    def close(self) -> None:
        """Disconnect."""

@final
class Books:
    """The sender's books of one connection whose bytes something in Python carries."""

    def __new__(cls, pool: Pool, endpoint: str, *, model: str, incarnation: int, layout: KvLayout, blocks: int) -> Self:
        """Open the books of a connection to a receiver with a pool of this layout."""
    @property
    def hello(self) -> str:
        """The first message to the receiver, as JSON."""
    @property
    def remote(self) -> tuple[KvLayout, int]:
        """The receiver's layout and its blocks."""
    @property
    def peer(self) -> str:
        """What is known of the receiver."""
    def begin(self, grant: Grant) -> None:
        """Book the begin of a transfer."""
    def put(self, key: TransferKey, layer: int, ranges: NDArray[np.uint32] | TransferPlan) -> NDArray[np.uint64]:
        """Book ranges; gives rows of place in the source's pool, place in the destination's, bytes."""
    def publish(self, key: TransferKey, layer: int) -> tuple[int, bool]:
        """Book a layer as published: its bytes, and whether it was the last."""
    def end(self, key: TransferKey, kind: str, reason: str = "", waited_s: float = 0.0) -> bool:
        """Book the end of a transfer; says whether it was open.

        Its kind is ``"local-done"``, ``"fenced"``, ``"denied"`` by the receiver, ``"failed"`` or ``"stalled"``.
        """
    def lose(self) -> None:
        """Take the receiver for gone: every open transfer fails."""
    def poll(self) -> list[Completion]:
        """Give the transfers that have ended."""

def bench_transfer(
    plan: dict[str, Any],
    backend: str,
    child: list[str],
    progress: Callable[[int, int], object] | None = None,
) -> Any:
    """Measure one transport between this process and a child; see ``splitcore.bench_transfer.measure``."""

def bench_transfer_receive() -> None:
    """Be the receiving process: answer on standard output until standard input ends."""

def workload(
    config: Mapping[str, object],
) -> tuple[str, NDArray[np.float64], NDArray[np.uint32], NDArray[np.uint32]]:
    """Make the requests of a workload, as a simulation with these options would have them.

    Args:
        config: The options of `splitcore.simulate` that name it.

    Returns:
        Its name, and by request the seconds of its arrival, which never decrease, the tokens of its prompt, and those
        of its output.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a trace is bad; it names file, line and field.
    """

@final
class Pass:
    """One forward pass of a `Worker`."""

    @property
    def number(self) -> int:
        """Counts from 1."""
    @property
    def spans(self) -> list[tuple[list[int], int, list[int], tuple[float, float, int, list[int]] | None, int, bool]]:
        """What is in it.

        Token ids, the position of the first, the block table, how the token after them is drawn (temperature, top_p,
        seed, tokens that may not be drawn) or None, which output token that is, and whether transfers follow its
        layers.
        """
    def put_layer(self, span: int, layer: int) -> None:
        """Send a layer of a span, which is in its blocks, to where the transfers that follow it go."""

@final
class Worker:
    """One machine of the live service; `splitcore.worker.run` runs its passes. Safe to share between threads."""

    def __new__(
        cls,
        pool: Pool,
        *,
        connect: str,
        name: str,
        role: str,
        model: str,
        context: int | None = None,
        vocabulary: int | None = None,
        secret: bytes | None = None,
        tls_ca: str | PathLike[str] | None = None,
        tls_name: str | None = None,
        peer_listen: str | None = None,
        transfer_listen: str | None = None,
        backend: str | None = None,
        batch_tokens_max: int = 2048,
        batch_requests_max: int = 512,
        prefill_chunk_tokens: int | None = None,
        report_interval_s: float = 1.0,
        transfer_limit_s: float = 20.0,
        park_limit_s: float = 30.0,
        orphan_limit_s: float = 120.0,
        event_log: str | PathLike[str] | None = None,
        event_log_keep: int | None = None,
        incarnation: int | None = None,
    ) -> Self:
        """Start to listen, and to look for the daemon, which may come later.

        Args:
            pool: Where the KV of its requests lies.
            connect: Where the daemon takes workers, ``host:port`` or ``unix:/path``.
            name: Unique among the workers of a daemon.
            role: ``"prompt"``, ``"token"`` or ``"mixed"``.
            model: As the daemon names it.
            context: Positions that the model knows; a request past them ends.
            vocabulary: Token ids are below it; a request with others ends.
            secret: What daemon and workers share.
            tls_ca: Speak TLS with the daemon; a file in PEM of the certificates to trust.
            tls_name: What the daemon's certificate must be for; by default the host of ``connect``.
            peer_listen: Where it takes other workers; by default at this host's address on the way to the daemon.
            transfer_listen: ``IP:PORT``, where it takes KV by TCP, or ``"none"``; by default beside ``peer_listen``
                where other workers may be on other hosts, and nowhere where all share memory.
            backend: What sends its KV; None chooses by where it goes.
            batch_tokens_max: Prompt tokens and decodes in a pass.
            batch_requests_max: Requests in a pass.
            prefill_chunk_tokens: Prompt tokens in a pass; a longer prompt is computed in chunks. None computes prompts
                whole.
            report_interval_s: Between two reports.
            transfer_limit_s: A transfer may take.
            park_limit_s: Work may wait for room.
            orphan_limit_s: Work is kept without a daemon.
            event_log: A folder in which to write down what its scheduler hears and does.
            event_log_keep: Segments of it, 64 MiB each, that are kept: the newest. None keeps all.
            incarnation: Higher with each start of the name; by default from the clock.

        Raises:
            ConfigError: If an option is out of its range.
            SplitcoreError: If it cannot listen, or there is no way to the daemon's host.
        """
    @property
    def peer_address(self) -> str:
        """Where it takes other workers."""
    @property
    def ended(self) -> tuple[str, str] | None:
        """How it has ended and why: ``stopped``, ``given-up``, ``refused`` or ``failed``; None while it goes on."""
    def next_pass(self, timeout_s: float | None = None) -> Pass | None:
        """Wait for a pass to run.

        Returns:
            The pass, or None when the time is up or it has ended.
        """
    def pass_done(self, done: Pass, tokens: Sequence[tuple[int, int]]) -> None:
        """Say that a pass has run and what was drawn for which span; transfers that lack a layer have failed."""
    def stats(self) -> dict[str, Any]:
        """Tell what it has done, by name."""
    def leave(self) -> None:
        """Have what is here go on elsewhere, by its daemon; it ends when it holds nothing any more."""
    def stop(self) -> tuple[str, str]:
        """End it, wait until its daemon has been told, and tell how it ended."""
    def fail(self, reason: str) -> tuple[str, str]:
        """End it because its engine cannot go on, as `stop`."""
    def close(self) -> None:
        """End it, and give back its sockets and threads."""
