//! Progressive filling: the max-min fair rates of a set of flows that share NICs.
//!
//! All rates rise together from zero. A flow stops at its own cap, or when a NIC it uses is full. This is done in
//! steps from one stop to the next. The level at which a NIC fills never falls while flows that stop below it are
//! taken out, which is why the NICs can wait in a heap under an old level and be looked at again when they come up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One NIC direction in a filling.
#[derive(Debug, Clone)]
pub(super) struct Pipe {
    /// Bytes a second not yet given away.
    left: f64,
    /// Flows that still rise.
    rising: u32,
    /// Range in `Filling::members`.
    members: (u32, u32),
}

/// One flow in a filling.
#[derive(Debug, Clone)]
struct Stream {
    /// The flow's slot, for the caller.
    slot: u32,
    cap: f64,
    /// Indices of its two pipes; `NONE` for a NIC that cannot fill.
    pipes: [u32; 2],
    /// Negative while it rises.
    rate: f64,
}

/// Stands for a NIC that is left out because it cannot fill.
pub(super) const NONE: u32 = u32::MAX;

/// Scratch space of a filling, kept between fillings so that none allocates.
#[derive(Debug, Clone, Default)]
pub(super) struct Filling {
    pipes: Vec<Pipe>,
    streams: Vec<Stream>,
    /// Streams of each pipe, pipe after pipe.
    members: Vec<u32>,
    /// Streams whose cap may stop them, by rising (cap, start order).
    by_cap: Vec<(u64, u64, u32)>,
    /// Pipes by (level at which they fill, index); the level may be an old, lower one.
    levels: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Filling {
    /// Begins a new filling.
    pub(super) fn clear(&mut self) {
        self.pipes.clear();
        self.streams.clear();
        self.members.clear();
        self.by_cap.clear();
        self.levels.clear();
    }

    /// Adds a NIC and returns its index.
    pub(super) fn add_pipe(&mut self, capacity: f64) -> u32 {
        self.pipes.push(Pipe { left: capacity, rising: 0, members: (0, 0) });
        self.pipes.len() as u32 - 1
    }

    /// Adds a flow over pipes added before.
    pub(super) fn add_stream(&mut self, slot: u32, started: u64, cap: f64, pipes: [u32; 2]) {
        let index = self.streams.len() as u32;
        self.streams.push(Stream { slot, cap, pipes, rate: -1.0 });
        let mut narrowest = f64::INFINITY;
        for pipe in pipes.into_iter().filter(|&pipe| pipe != NONE) {
            let pipe = &mut self.pipes[pipe as usize];
            pipe.rising += 1;
            narrowest = narrowest.min(pipe.left);
        }
        // A cap that no share of a pipe can exceed need not be watched; serialized flows have no other.
        if cap < narrowest {
            self.by_cap.push((cap.to_bits(), started, index));
        }
    }

    /// Slots and rates after [`Filling::run`], in the order they were added.
    pub(super) fn rates(&self) -> impl Iterator<Item = (u32, f64)> {
        self.streams.iter().map(|stream| (stream.slot, stream.rate))
    }

    /// Works out all rates.
    pub(super) fn run(&mut self) {
        self.list_members();
        // Bit patterns of positive floats sort as the floats do.
        self.by_cap.sort_unstable();
        for (index, pipe) in self.pipes.iter().enumerate().filter(|(_, pipe)| pipe.rising > 0) {
            self.levels.push(Reverse(((pipe.left / f64::from(pipe.rising)).to_bits(), index as u32)));
        }
        let mut next_cap = 0;
        while let Some((level, pipe)) = self.lowest_level() {
            if let Some(&(cap, _, stream)) = self.by_cap.get(next_cap) {
                if self.streams[stream as usize].rate >= 0.0 {
                    next_cap += 1;
                    continue;
                }
                if f64::from_bits(cap) <= level {
                    next_cap += 1;
                    self.stop(stream, f64::from_bits(cap));
                    continue;
                }
            }
            let (from, to) = self.pipes[pipe as usize].members;
            for member in from..to {
                let stream = self.members[member as usize];
                if self.streams[stream as usize].rate < 0.0 {
                    self.stop(stream, level);
                }
            }
        }
        for stream in &mut self.streams {
            if stream.rate < 0.0 {
                stream.rate = stream.cap;
            }
        }
    }

    /// Groups the streams by pipe (counting sort).
    fn list_members(&mut self) {
        let mut total = 0;
        for pipe in &mut self.pipes {
            pipe.members = (total, total);
            total += pipe.rising;
        }
        self.members.resize(total as usize, 0);
        for (index, stream) in self.streams.iter().enumerate() {
            for pipe in stream.pipes.into_iter().filter(|&pipe| pipe != NONE) {
                let end = &mut self.pipes[pipe as usize].members.1;
                self.members[*end as usize] = index as u32;
                *end += 1;
            }
        }
    }

    /// The pipe that fills next and its level; `None` when nothing rises in any pipe. It stays in the heap.
    fn lowest_level(&mut self) -> Option<(f64, u32)> {
        loop {
            let Reverse((old, index)) = *self.levels.peek()?;
            let pipe = &self.pipes[index as usize];
            if pipe.rising == 0 {
                self.levels.pop();
                continue;
            }
            let level = pipe.left / f64::from(pipe.rising);
            // Rounding may put it an ulp below the old level; only a rise must be sorted in again.
            if level.to_bits() <= old {
                return Some((level, index));
            }
            self.levels.pop();
            self.levels.push(Reverse((level.to_bits(), index)));
        }
    }

    /// Fixes a stream's rate and takes it out of its pipes.
    fn stop(&mut self, index: u32, rate: f64) {
        let stream = &mut self.streams[index as usize];
        stream.rate = rate;
        for pipe in stream.pipes {
            if pipe != NONE {
                let pipe = &mut self.pipes[pipe as usize];
                pipe.left -= rate;
                pipe.rising -= 1;
            }
        }
    }
}
