//! KV transfers between machines: flows that share NICs by max-min fairness.
//!
//! Every machine has a NIC with a send and a receive direction (full duplex: the two never share). A flow uses the
//! send direction of its source and the receive direction of its destination; its rate is bounded by the slower of
//! both, by a cap of its own (a layer-wise flow cannot run ahead of the prefill that makes its bytes), and by its
//! max-min share of either.
//!
//! Most flows never meet a full NIC, so most changes cost nothing beyond a list insertion: a NIC whose flows could
//! all run at their caps at once does not couple them. Only when a change touches a NIC that is (or was) oversubscribed
//! are rates worked out anew, and only for the flows that can be reached through oversubscribed NICs.
//!
//! Changes at one time are settled together, at the next question about the future.
//!
//! ```
//! use splitcore_sim::links::{Contention, Links, Nic};
//!
//! let nic = Nic { send_bytes_per_s: 1e9, receive_bytes_per_s: 1e9 };
//! let mut links = Links::new(&[nic; 3], Contention::On);
//! let first = links.start(0, 0, 2, 1_000_000_000, None);
//! let second = links.start(0, 1, 2, 500_000_000, None);
//! // Both share the NIC of machine 2 until the shorter one is through.
//! let mut done = Vec::new();
//! assert_eq!(links.next_completion(), Some(1_000_000_000));
//! links.complete_due(1_000_000_000, &mut done);
//! assert_eq!(done, [second]);
//! assert_eq!(links.next_completion(), Some(1_500_000_000));
//! links.complete_due(1_500_000_000, &mut done);
//! assert_eq!(done, [second, first]);
//! ```

mod ends;
mod fill;

use ends::{Ends, Entry};
use fill::{Filling, NONE};

/// What a machine's NIC can carry in each direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nic {
    /// Bytes a second out of the machine.
    pub send_bytes_per_s: f64,
    /// Bytes a second into the machine.
    pub receive_bytes_per_s: f64,
}

/// Whether flows slow each other down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Contention {
    /// Flows share NICs by max-min fairness.
    On,
    /// Each flow runs as if it were alone.
    Off,
}

/// Names a flow. Slots are used again, but never with the same generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId {
    slot: u32,
    generation: u32,
}

impl FlowId {
    /// A small number that no other live flow has, to index a table of one's own by flow.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// A flow under way, or a free slot (`generation` then is that of the next user).
#[derive(Debug, Clone)]
struct Flow {
    generation: u32,
    live: bool,
    /// Order of starts; settles ties.
    started: u64,
    bytes: u64,
    /// The most it could carry: its own cap and both NICs.
    cap: f64,
    rate: f64,
    /// Bytes to go at `since_ns`, when `rate` began to hold.
    left_bytes: f64,
    since_ns: u64,
    end_ns: u64,
    /// The send direction it uses, then the receive direction.
    pipes: [u32; 2],
    /// Its index in the list of either.
    listed_at: [u32; 2],
    /// The last sweep that saw it.
    swept: u64,
}

/// One direction of one NIC: machine `m` sends through pipe `2 m` and receives through pipe `2 m + 1`.
#[derive(Debug, Clone)]
struct Pipe {
    capacity: f64,
    /// Sum of its flows' caps in whole bytes a second, each rounded up: integers come back to zero exactly.
    wanted: u128,
    flows: Vec<u32>,
    /// The last sweep that saw it, and its index in that sweep's filling.
    swept: u64,
    index: u32,
}

impl Pipe {
    fn new(capacity: f64) -> Self {
        assert!(capacity > 0.0 && capacity.is_finite(), "a NIC carries {capacity} bytes/s");
        Self { capacity, wanted: 0, flows: Vec::new(), swept: 0, index: NONE }
    }

    /// True if its flows could not all run at their caps.
    fn oversubscribed(&self) -> bool {
        self.flows.len() > 1 && self.wanted > self.capacity as u128
    }
}

/// All flows under way. See the module for the model and an example.
///
/// The caller keeps one timer: after every batch of changes it asks [`Links::arm`], pushes a timer event if told
/// so, and calls [`Links::complete_due`] when one fires. A timer that has become stale finds nothing to complete.
#[derive(Debug, Clone)]
pub struct Links {
    contention: Contention,
    pipes: Vec<Pipe>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    ends: Ends,
    /// Time of the last change.
    now_ns: u64,
    started: u64,
    /// Pipes whose flows need new rates as of `now_ns`.
    unsettled: Vec<u32>,
    sweep: u64,
    /// The earliest timer the caller is known to hold.
    armed_ns: Option<u64>,
    delivered_bytes: u128,
    filling: Filling,
}

impl Links {
    /// NICs of machines 0, 1, and so on, without flows.
    ///
    /// # Panics
    /// If a capacity is not positive and finite.
    pub fn new(nics: &[Nic], contention: Contention) -> Self {
        let directions = nics.iter().flat_map(|nic| [nic.send_bytes_per_s, nic.receive_bytes_per_s]);
        Self {
            contention,
            pipes: directions.map(Pipe::new).collect(),
            flows: Vec::new(),
            free: Vec::new(),
            ends: Ends::default(),
            now_ns: 0,
            started: 0,
            unsettled: Vec::new(),
            sweep: 0,
            armed_ns: None,
            delivered_bytes: 0,
            filling: Filling::default(),
        }
    }

    /// Bytes a second a lone flow between two machines gets: the slower of the two NICs.
    pub fn pair_bytes_per_s(&self, from: u32, to: u32) -> f64 {
        self.pipes[2 * from as usize].capacity.min(self.pipes[2 * to as usize + 1].capacity)
    }

    /// Starts a flow. Without a cap it takes all it can get.
    ///
    /// # Panics
    /// If time runs backwards, a machine is unknown, or the cap is not positive.
    pub fn start(
        &mut self,
        now_ns: u64,
        from: u32,
        to: u32,
        bytes: u64,
        rate_cap_bytes_per_s: Option<f64>,
    ) -> FlowId {
        self.move_to(now_ns);
        let own_cap = rate_cap_bytes_per_s.unwrap_or(f64::INFINITY);
        assert!(own_cap > 0.0, "a flow's rate cap is {own_cap} bytes/s");
        let cap = own_cap.min(self.pair_bytes_per_s(from, to));
        let flow = Flow {
            generation: 0,
            live: true,
            started: self.started,
            bytes,
            cap,
            rate: cap,
            left_bytes: bytes as f64,
            since_ns: now_ns,
            end_ns: end_ns(now_ns, bytes as f64, cap),
            pipes: [2 * from, 2 * to + 1],
            listed_at: [NONE; 2],
            swept: 0,
        };
        self.started += 1;
        let id = self.store(flow);
        if self.contention == Contention::On {
            self.list(id.slot);
        }
        id
    }

    /// Stops a flow before its end; its share goes to the others. False if it is not under way.
    pub fn cancel(&mut self, now_ns: u64, id: FlowId) -> bool {
        self.move_to(now_ns);
        if self.get(id).is_none() {
            return false;
        }
        self.remove(id.slot);
        true
    }

    /// When the next flow ends at the rates of now.
    pub fn next_completion(&mut self) -> Option<u64> {
        self.settle();
        self.ends.first().map(|end| end.end_ns)
    }

    /// Like [`Links::next_completion`], but only if the caller has no timer for then or before.
    ///
    /// Every time returned counts as a timer the caller holds until [`Links::complete_due`] is called at that time
    /// or later.
    pub fn arm(&mut self) -> Option<u64> {
        let next = self.next_completion()?;
        if self.armed_ns.is_some_and(|armed_ns| armed_ns <= next) {
            return None;
        }
        self.armed_ns = Some(next);
        Some(next)
    }

    /// Removes all flows that end at `now_ns` or before and appends them to `done`, by (end, start).
    pub fn complete_due(&mut self, now_ns: u64, done: &mut Vec<FlowId>) {
        self.move_to(now_ns);
        if self.armed_ns.is_some_and(|armed_ns| armed_ns <= now_ns) {
            self.armed_ns = None;
        }
        while let Some(Entry { slot, .. }) = self.ends.first().filter(|end| end.end_ns <= now_ns) {
            let flow = &self.flows[slot as usize];
            done.push(FlowId { slot, generation: flow.generation });
            self.delivered_bytes += u128::from(flow.bytes);
            self.remove(slot);
        }
    }

    /// Flows under way.
    pub fn active(&self) -> usize {
        self.flows.len() - self.free.len()
    }

    /// Bytes of all flows that have ended; a cancelled flow delivers nothing.
    pub fn delivered_bytes(&self) -> u128 {
        self.delivered_bytes
    }

    /// The rate of a flow now; `None` if it is not under way.
    pub fn rate_bytes_per_s(&mut self, id: FlowId) -> Option<f64> {
        self.settle();
        self.get(id).map(|flow| flow.rate)
    }

    /// The end of a flow at the rates of now; `None` if it is not under way.
    pub fn end_ns(&mut self, id: FlowId) -> Option<u64> {
        self.settle();
        self.get(id).map(|flow| flow.end_ns)
    }

    fn get(&self, id: FlowId) -> Option<&Flow> {
        self.flows.get(id.slot()).filter(|flow| flow.live && flow.generation == id.generation)
    }

    /// Moves the clock; what changed before has its effect from then on.
    fn move_to(&mut self, now_ns: u64) {
        assert!(now_ns >= self.now_ns, "links asked for {now_ns} ns, but it is {} ns already", self.now_ns);
        if now_ns > self.now_ns {
            self.settle();
            self.now_ns = now_ns;
        }
    }

    /// Puts a flow into a free slot.
    fn store(&mut self, mut flow: Flow) -> FlowId {
        let slot = self.free.pop().unwrap_or(self.flows.len() as u32);
        self.ends.insert(Entry { end_ns: flow.end_ns, started: flow.started, slot });
        if let Some(old) = self.flows.get_mut(slot as usize) {
            flow.generation = old.generation;
            *old = flow;
        } else {
            self.flows.push(flow);
        }
        FlowId { slot, generation: self.flows[slot as usize].generation }
    }

    /// Frees a slot.
    fn remove(&mut self, slot: u32) {
        self.ends.remove(slot);
        if self.contention == Contention::On {
            self.unlist(slot);
        }
        let flow = &mut self.flows[slot as usize];
        flow.live = false;
        flow.generation = flow.generation.wrapping_add(1);
        self.free.push(slot);
    }

    /// Enters a flow in the lists of its two pipes.
    fn list(&mut self, slot: u32) {
        let flow = &mut self.flows[slot as usize];
        for side in 0..2 {
            let pipe = &mut self.pipes[flow.pipes[side] as usize];
            flow.listed_at[side] = pipe.flows.len() as u32;
            pipe.flows.push(slot);
            pipe.wanted += whole(flow.cap);
            if pipe.oversubscribed() {
                self.unsettled.push(flow.pipes[side]);
            }
        }
    }

    /// Takes a flow out of the lists of its two pipes.
    fn unlist(&mut self, slot: u32) {
        for side in 0..2 {
            let flow = &self.flows[slot as usize];
            let (at, cap) = (flow.listed_at[side], flow.cap);
            let pipe = &mut self.pipes[flow.pipes[side] as usize];
            if pipe.oversubscribed() {
                self.unsettled.push(flow.pipes[side]);
            }
            pipe.wanted -= whole(cap);
            pipe.flows.swap_remove(at as usize);
            if let Some(&moved) = pipe.flows.get(at as usize) {
                self.flows[moved as usize].listed_at[side] = at;
            }
        }
    }

    /// Works out the rates of all flows that the changes at `now_ns` can have touched.
    fn settle(&mut self) {
        if self.unsettled.is_empty() {
            return;
        }
        self.sweep += 1;
        self.filling.clear();
        let mut queue = std::mem::take(&mut self.unsettled);
        queue.retain(|&pipe| self.enter(pipe));
        let mut next = 0;
        while next < queue.len() {
            self.sweep_pipe(queue[next], &mut queue);
            next += 1;
        }
        queue.clear();
        self.unsettled = queue;
        self.filling.run();
        for (slot, rate) in self.filling.rates() {
            let flow = &mut self.flows[slot as usize];
            if flow.rate == rate {
                continue; // No new start of a stretch, so no rounding either.
            }
            if change_rate(flow, rate, self.now_ns) {
                self.ends.change(slot, flow.end_ns);
            }
        }
    }

    /// Adds a pipe to the filling under way; false if it is in already.
    fn enter(&mut self, pipe: u32) -> bool {
        let pipe = &mut self.pipes[pipe as usize];
        if pipe.swept == self.sweep {
            return false;
        }
        pipe.swept = self.sweep;
        pipe.index = self.filling.add_pipe(pipe.capacity);
        true
    }

    /// Adds a pipe's flows to the filling, and to the queue the pipes that bind them to others.
    fn sweep_pipe(&mut self, pipe: u32, queue: &mut Vec<u32>) {
        for at in 0..self.pipes[pipe as usize].flows.len() {
            let slot = self.pipes[pipe as usize].flows[at];
            let flow = &mut self.flows[slot as usize];
            if flow.swept == self.sweep {
                continue;
            }
            flow.swept = self.sweep;
            let (started, cap, pipes) = (flow.started, flow.cap, flow.pipes);
            let indices = pipes.map(|used| {
                if self.pipes[used as usize].oversubscribed() && self.enter(used) {
                    queue.push(used);
                }
                let used = &self.pipes[used as usize];
                if used.swept == self.sweep { used.index } else { NONE }
            });
            self.filling.add_stream(slot, started, cap, indices);
        }
    }
}

/// A cap as it counts towards [`Pipe::wanted`].
fn whole(bytes_per_s: f64) -> u128 {
    bytes_per_s.ceil() as u128
}

/// Gives a flow a new rate from `now_ns` on; false if it is through already.
fn change_rate(flow: &mut Flow, rate: f64, now_ns: u64) -> bool {
    if flow.end_ns <= now_ns {
        return false; // Waits to be completed at this very time.
    }
    let carried = flow.rate * ((now_ns - flow.since_ns) as f64 / 1e9);
    flow.left_bytes = (flow.left_bytes - carried).max(0.0);
    flow.since_ns = now_ns;
    flow.rate = rate;
    flow.end_ns = end_ns(now_ns, flow.left_bytes, rate);
    true
}

/// When `bytes` are through, rounded up to whole nanoseconds.
///
/// What lies above a whole nanosecond by no more than the rounding of the division is that nanosecond: a flow of
/// `bytes` capped at `bytes` / prefill time ends with the prefill.
fn end_ns(from_ns: u64, bytes: f64, bytes_per_s: f64) -> u64 {
    let duration_ns = bytes * 1e9 / bytes_per_s;
    let exact = duration_ns - duration_ns * (4.0 * f64::EPSILON);
    from_ns.saturating_add(exact.ceil() as u64)
}
