//! Transfers that meet on network cards: always the same number under way, each end starts the next.

use splitcore_sim::links::{Contention, FlowId, Links, Nic};

use crate::draws::Draws;

const NIC: Nic = Nic { send_bytes_per_s: 4e11, receive_bytes_per_s: 4e11 };

/// Links between as many sources as destinations.
#[derive(Debug)]
pub struct Flows {
    links: Links,
    draws: Draws,
    side: u32,
    now_ns: u64,
    ended: Vec<FlowId>,
}

impl Flows {
    /// `side` sources and destinations, and `flows` flows between them.
    pub fn new(side: u32, flows: usize, seed: u64) -> Self {
        let links = Links::new(&vec![NIC; 2 * side as usize], Contention::On);
        let mut all = Self { links, draws: Draws::new(seed), side, now_ns: 0, ended: Vec::new() };
        for _ in 0..flows {
            all.start();
        }
        all
    }

    /// Goes on to the next end. Returns how many flows ended.
    pub fn step(&mut self) -> usize {
        self.now_ns = self.links.next_completion().expect("flows are under way");
        self.ended.clear();
        self.links.complete_due(self.now_ns, &mut self.ended);
        for _ in 0..self.ended.len() {
            self.start();
        }
        self.ended.len()
    }

    fn start(&mut self) {
        let side = u64::from(self.side);
        let (from, to) = (self.draws.below(side) as u32, self.side + self.draws.below(side) as u32);
        let bytes = u64::from(self.draws.between(128, 8192)) * 4_014_080;
        // A layer-wise transfer goes no faster than its prefill.
        let cap = f64::from(self.draws.between(10, 100)) * 4e9;
        self.links.start(self.now_ns, from, to, bytes, Some(cap));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_number_of_flows() {
        let mut flows = Flows::new(4, 12, 1);
        assert!((0..500).all(|_| flows.step() > 0));
        assert_eq!(flows.links.active(), 12);
    }
}
