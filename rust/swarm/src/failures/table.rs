//! The table: what is done where a leg meets a failure. It follows from which part the leg plays in its handoff.

use super::Failure;
use splitcore_core::leg::{Compute, Inbound, LegState, Outbound};

/// The part a leg plays, as far as failures go: it says where the KV is and who may still touch the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A first leg with the only KV there is; nothing moves. Until it decodes it may have a second leg to go to.
    Unsent,
    /// The only leg of its request, past its prompt.
    Whole,
    /// A first leg whose KV is on its way.
    Sending,
    /// Its transfer is to stop; the Cluster has named another destination, or given the leg up.
    Stopping,
    /// A first leg whose destination has everything, in a pass that is not over.
    Handed,
    /// It is over for the Cluster, but the transport may still read its blocks.
    Closing,
    /// A second leg that has blocks and not all of its KV.
    Awaiting,
    /// A second leg with all of its KV.
    Landed,
    /// A second leg that was given up while a writer may still write.
    Quarantined,
}

impl Part {
    /// Which part a leg in this state plays. `None` where no machine may hold such a leg.
    pub fn of(state: LegState) -> Option<Self> {
        if !state.is_legal() {
            return None;
        }
        Some(match (state.compute, state.inbound, state.outbound) {
            (Compute::Done, _, _) => Self::Closing,
            (_, Inbound::Draining, _) => Self::Quarantined,
            (_, Inbound::Reserved | Inbound::Receiving, _) => Self::Awaiting,
            (_, Inbound::Ready, _) => Self::Landed,
            (_, _, Outbound::Sending) => Self::Sending,
            (_, _, Outbound::Draining) => Self::Stopping,
            (_, _, Outbound::Released) => Self::Handed,
            (Compute::Decoding | Compute::Evicted, _, _) => Self::Whole,
            _ => Self::Unsent,
        })
    }
}

/// What is done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// What the Cluster and the machines do.
    pub action: &'static str,
    /// Who frees which blocks, and when.
    pub frees: &'static str,
    /// What the client sees.
    pub client: &'static str,
    /// The test that shows it: file and function under `rust/core/tests/failures`.
    pub test: &'static str,
}

/// A cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// The leg can meet the failure.
    Handled(Handling),
    /// It cannot, and why.
    CannotBe(&'static str),
}

/// The states that a machine may hold a leg in, in the order of the table.
pub fn legal() -> impl Iterator<Item = LegState> {
    use {Compute as C, Inbound as I, Outbound as O};
    let computes = [C::Waiting, C::Queued, C::Prefilling, C::Held, C::Decoding, C::Evicted, C::Done];
    let inbounds = [I::None, I::Reserving, I::Reserved, I::Receiving, I::Ready, I::Draining];
    let outbounds = [O::None, O::Sending, O::Draining, O::Released];
    let all = inbounds.into_iter().flat_map(move |inbound| {
        let states = move |compute| outbounds.map(|outbound| LegState { compute, inbound, outbound });
        computes.into_iter().flat_map(states)
    });
    all.filter(|state| state.is_legal())
}

/// A state as the table names it: compute, inbound, outbound, without what is none.
pub fn name(state: LegState) -> String {
    let inbound = match state.inbound {
        Inbound::None => String::new(),
        inbound => format!(", in {inbound:?}"),
    };
    let outbound = match state.outbound {
        Outbound::None => String::new(),
        outbound => format!(", out {outbound:?}"),
    };
    format!("{:?}{inbound}{outbound}", state.compute).to_lowercase()
}

/// What is done where a leg in this state meets this failure.
pub fn cell(state: LegState, failure: Failure) -> Cell {
    let Some(part) = Part::of(state) else { return Cell::CannotBe("no machine may hold such a leg") };
    match failure {
        Failure::MachineLost => machine_lost(state, part, LOST),
        Failure::PeerLost => peer_lost(state, part),
        Failure::TransferFailed => transfer_failed(state, part),
        Failure::TransferStalled => transfer_stalled(state, part),
        Failure::Cancel => cancel(state, part),
        Failure::SessionLost => session_lost(state, part),
        Failure::Expired => machine_lost(state, part, EXPIRED),
        Failure::PeerReset => peer_reset(part),
        Failure::Paused => paused(part),
        Failure::ClusterRestart => cluster_restart(state, part),
        Failure::Drain => drain(part),
    }
}

fn handled(action: &'static str, frees: &'static str, client: &'static str, test: &'static str) -> Cell {
    Cell::Handled(Handling { action, frees, client, test })
}

/// Whether the Cluster has given the leg up, or all but given it up: in a pass a transfer is stopped only for that.
fn is_given_up(state: LegState, part: Part) -> bool {
    matches!(part, Part::Closing | Part::Quarantined)
        || (part == Part::Stopping && state.compute == Compute::Prefilling)
}

const ALONE: Cell = Cell::CannotBe("it is the only leg of its request: there is no other machine");
const STILL: Cell = Cell::CannotBe("none of its KV is on its way");

const NOBODY: &str = "nobody: every block stays where it is";
const GONE: &str = "its own blocks are gone with the machine";
const NOTHING: &str = "nothing";
const NEXT_ATTEMPT: &str = "a pause, then the next token";
const LATER: &str = "the second token comes later";
const RUNS_ELSEWHERE: &str = "nothing: the request has ended or runs elsewhere";

/// The tests of a lost machine: of a leg given up, one that has handed over, a destination, the only KV.
const LOST: [&str; 4] = [
    "machine_lost::a_leg_given_up_is_no_loss",
    "machine_lost::a_source_that_has_handed_over_is_no_loss",
    "machine_lost::a_destination_without_its_kv_is_replaced",
    "machine_lost::the_only_kv_lost_costs_the_attempt",
];

/// The same of a machine that is back too late.
const EXPIRED: [&str; 4] = [
    "session::a_leg_given_up_expires_unnoticed",
    "session::a_source_that_has_handed_over_may_expire",
    "session::an_expired_destination_is_replaced",
    "session::an_expired_machine_with_the_only_kv_costs_the_attempt",
];

fn machine_lost(state: LegState, part: Part, tests: [&'static str; 4]) -> Cell {
    if is_given_up(state, part) {
        return handled(
            "nothing: the Cluster had given the leg up, and waits for it no more",
            GONE,
            RUNS_ELSEWHERE,
            tests[0],
        );
    }
    match part {
        Part::Handed => handled(
            "nothing, but that another machine keeps the request: the destination has the KV and the first \
             token (had it not told the Cluster yet: a fault and the next attempt)",
            GONE,
            NOTHING,
            tests[1],
        ),
        Part::Awaiting => handled(
            "a fault; the KV is at the source still: another destination, the same attempt",
            "its own blocks are gone with the machine; the source keeps its blocks for the next transfer",
            LATER,
            tests[2],
        ),
        _ => handled(
            "a fault; the KV is lost: the next attempt, with the tokens that the client has at the end of \
             its prompt",
            "its own blocks are gone with the machine; what another machine holds of the attempt it frees \
             on `Abort`",
            NEXT_ATTEMPT,
            tests[3],
        ),
    }
}

fn peer_lost(state: LegState, part: Part) -> Cell {
    match part {
        Part::Whole => ALONE,
        Part::Unsent | Part::Sending => handled(
            "a fault; the KV is here still: another destination, the same attempt; a transfer to the lost \
             machine is over",
            "nobody here: the leg keeps its blocks for the next transfer; those of the destination are \
             gone with it",
            LATER,
            "peer_lost::a_source_sends_elsewhere",
        ),
        Part::Stopping if !is_given_up(state, part) => handled(
            "nothing new: with the machine the transfer is over, and the next one to the destination \
             named since may begin",
            "nobody here: the leg keeps its blocks for the next transfer",
            LATER,
            "peer_lost::a_stopping_transfer_is_over",
        ),
        Part::Stopping | Part::Closing => handled(
            "nothing new: with the machine the transfer is over",
            "the leg's machine frees its blocks now, or with the end of the pass",
            RUNS_ELSEWHERE,
            "peer_lost::nobody_reads_a_closing_leg_any_more",
        ),
        Part::Handed => handled(
            "a fault; the KV is lost with the destination: the next attempt (had it not told the Cluster \
             that all has landed: another destination)",
            "the leg's machine frees its blocks with the end of the pass",
            NEXT_ATTEMPT,
            "peer_lost::kv_handed_to_a_lost_machine_costs_the_attempt",
        ),
        Part::Awaiting => handled(
            "a fault; the KV is lost with the source: the next attempt",
            "the leg's machine frees its blocks when it knows both that it is aborted and that the writer \
             is lost",
            NEXT_ATTEMPT,
            "peer_lost::a_destination_whose_source_is_lost_is_given_up",
        ),
        Part::Landed => handled(
            "nothing: all of the KV is here",
            "nobody here; what the source still had is gone with it",
            NOTHING,
            "peer_lost::what_has_landed_needs_no_source",
        ),
        Part::Quarantined => handled(
            "nothing new: a lost machine writes nothing",
            "the leg's machine frees its blocks now",
            RUNS_ELSEWHERE,
            "peer_lost::a_lost_writer_ends_the_quarantine",
        ),
    }
}

fn transfer_failed(state: LegState, part: Part) -> Cell {
    match part {
        Part::Sending => handled(
            "a fault; the KV is here still: another destination, the same attempt",
            "the destination frees its blocks after `AbortAck`; the leg keeps its own for the next transfer",
            LATER,
            "transfer::a_failed_transfer_goes_elsewhere",
        ),
        Part::Stopping if !is_given_up(state, part) => handled(
            "nothing new: it counts as the end of the stop; the next transfer to the destination named \
             since may begin",
            "the destination given up frees its blocks after `AbortAck`; the leg keeps its own",
            LATER,
            "transfer::failing_ends_a_stop",
        ),
        Part::Stopping | Part::Closing => handled(
            "nothing new: it counts as the end of the stop",
            "the leg's machine frees its blocks now, or with the end of the pass",
            RUNS_ELSEWHERE,
            "transfer::failing_lets_go_of_a_closing_leg",
        ),
        Part::Awaiting => handled(
            "a fault, told by the source; the leg is aborted, and another destination is found",
            "the leg's machine, after `AbortAck`: until then its blocks are in quarantine",
            LATER,
            "transfer::a_destination_of_a_failed_transfer_is_given_up",
        ),
        Part::Quarantined => handled(
            "nothing new: the source answers `AbortAck`",
            "the leg's machine frees its blocks on `AbortAck`",
            RUNS_ELSEWHERE,
            "transfer::failing_ends_the_quarantine",
        ),
        Part::Unsent | Part::Whole | Part::Handed | Part::Landed => STILL,
    }
}

fn transfer_stalled(state: LegState, part: Part) -> Cell {
    match part {
        Part::Sending => handled(
            "`transfer_limit_ns` after it could have ended (for one that follows a pass: after the pass) \
             it is stopped and counts as failed: a fault, another destination. If it does not even stop, \
             as long again later the leg is taken back: the next attempt, no fault",
            "the source its own, the destination its own, each only when the transport has let go",
            LATER,
            "transfer::a_stalled_transfer_is_stopped_and_then_routed_around",
        ),
        Part::Stopping if !is_given_up(state, part) => handled(
            "`transfer_limit_ns` later the leg is taken back: the next attempt, no fault",
            "the source its own, the destination its own, each only when the transport has let go",
            NEXT_ATTEMPT,
            "transfer::a_stop_that_does_not_come_is_routed_around",
        ),
        Part::Awaiting => handled(
            "it waits for its source, whose clock it is; aborted with the source's word",
            "the leg's machine, after `AbortAck`: until then its blocks are in quarantine",
            LATER,
            "transfer::a_destination_of_a_stalled_transfer_is_given_up",
        ),
        Part::Stopping | Part::Closing | Part::Quarantined => handled(
            "nothing: whoever may still read or write does not say that it has stopped",
            "the leg's machine, only when the transport lets go or either machine is lost: no clock frees \
             what may be written",
            RUNS_ELSEWHERE,
            "transfer::no_clock_frees_what_the_transport_may_touch",
        ),
        Part::Unsent | Part::Whole | Part::Handed | Part::Landed => STILL,
    }
}

fn cancel(state: LegState, part: Part) -> Cell {
    const ENDED: &str = "the request has ended as cancelled, at once";
    const ABORT: &str = "off the books at once; `Abort`";
    match (part, state.compute) {
        (Part::Sending, _) => handled(
            "off the books at once; `Abort`, and the transfer is stopped",
            "the leg's machine, when the transport has let go and the pass is over; the destination after \
             `AbortAck`",
            ENDED,
            "cancel::what_is_read_is_freed_when_the_reader_lets_go",
        ),
        (Part::Stopping | Part::Closing, _) => handled(
            "off the books at once; `Abort`, unless it was given up before",
            "the leg's machine, when the transport has let go and the pass is over",
            ENDED,
            "cancel::what_is_read_is_freed_when_the_reader_lets_go",
        ),
        (Part::Awaiting, _) => handled(
            "off the books at once; `Abort`, and the source is told to write no more",
            "the leg's machine, after `AbortAck`: until then its blocks are in quarantine",
            ENDED,
            "cancel::what_may_be_written_is_freed_when_the_writer_says_so",
        ),
        (Part::Quarantined, _) => handled(
            "nothing new here: it was given up before",
            "the leg's machine, after `AbortAck`",
            ENDED,
            "cancel::what_may_be_written_is_freed_when_the_writer_says_so",
        ),
        (_, Compute::Prefilling | Compute::Decoding) => handled(
            ABORT,
            "the leg's machine, with the end of the pass that it is in",
            ENDED,
            "cancel::what_is_in_a_pass_is_freed_with_its_end",
        ),
        _ => handled(
            ABORT,
            "the leg's machine, at once",
            ENDED,
            "cancel::what_nobody_touches_is_freed_at_once",
        ),
    }
}

fn session_lost(state: LegState, part: Part) -> Cell {
    if is_given_up(state, part) {
        return handled(
            "registered as closing, or not at all if it is gone by then; the Cluster closes its books",
            "the leg's machine, when whoever reads or writes has let go, session or not",
            RUNS_ELSEWHERE,
            "session::a_leg_given_up_closes_with_the_next_session",
        );
    }
    handled(
        "it runs on; registered, it is confirmed (`Confirm`) and says again where it stands, and commands \
         that were lost come again",
        NOBODY,
        "tokens stop, and go on with the new session; those that were lost on the way are given again",
        "session::a_leg_goes_on_through_a_lost_session",
    )
}

fn peer_reset(part: Part) -> Cell {
    match part {
        Part::Whole => ALONE,
        Part::Awaiting => handled(
            "it says its `Grant` again, if it had given one",
            NOBODY,
            NOTHING,
            "peer_reset::a_destination_says_again_where_it_stands",
        ),
        Part::Landed => handled(
            "it says `Landed` again",
            "the source frees its blocks if it had not heard",
            NOTHING,
            "peer_reset::a_destination_says_again_where_it_stands",
        ),
        Part::Quarantined => handled(
            "it says `Abort` again",
            "the leg's machine, after the `AbortAck` to that",
            RUNS_ELSEWHERE,
            "peer_reset::a_destination_says_again_where_it_stands",
        ),
        Part::Unsent | Part::Sending | Part::Stopping | Part::Handed | Part::Closing => handled(
            "it has nothing to say: whatever it missed, the destination says again",
            NOBODY,
            NOTHING,
            "peer_reset::a_source_hears_again_what_it_missed",
        ),
    }
}

fn paused(part: Part) -> Cell {
    match part {
        Part::Sending => handled(
            "it goes on when its machine does. Its `transfer_limit_ns` may have run out meanwhile: then \
             the transfer is stopped, and the destination keeps it if it had landed all the same",
            NOBODY,
            "a pause",
            "paused::a_leg_goes_on_when_its_machine_does",
        ),
        Part::Stopping | Part::Closing | Part::Quarantined => handled(
            "it goes on when its machine does",
            "the leg's machine, once whoever reads or writes has let go",
            "a pause, unless the request runs elsewhere",
            "paused::a_leg_goes_on_when_its_machine_does",
        ),
        _ => handled(
            "it goes on when its machine does; a handoff that waits for it longer than `park_limit_ns` is \
             taken back, and that is no fault",
            NOBODY,
            "a pause",
            "paused::a_leg_goes_on_when_its_machine_does",
        ),
    }
}

fn cluster_restart(state: LegState, part: Part) -> Cell {
    if is_given_up(state, part) {
        return handled(
            "the new Cluster takes it for what it is: something that closes, and must be heard of before \
             its name is used again",
            "the leg's machine, when whoever reads or writes has let go, Cluster or not",
            RUNS_ELSEWHERE,
            "restart::a_leg_given_up_closes_under_the_next_cluster",
        );
    }
    handled(
        "the new Cluster adopts it from its machine's claim and confirms it; what has no second leg then \
         gets one after `grace_ns`",
        NOBODY,
        "tokens stop, and go on with the new session; those that were lost on the way are given again",
        "restart::a_leg_goes_on_under_the_next_cluster",
    )
}

fn drain(part: Part) -> Cell {
    let frees = match part {
        Part::Stopping | Part::Closing | Part::Quarantined => {
            "the leg's machine, when whoever reads or writes has let go; only then is it drained"
        }
        _ => "as without it; when the last leg is gone the machine is drained",
    };
    handled(
        "nothing: what a machine has it brings to its end",
        frees,
        NOTHING,
        "drain::a_leg_on_a_draining_machine_goes_on_to_its_end",
    )
}
