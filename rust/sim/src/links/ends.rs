//! The ends of all flows in a binary heap whose entries can be moved.
//!
//! Rates change often; moving an entry keeps the heap as small as the number of flows, where pushing again and
//! skipping stale entries would let it grow.

/// An entry: when a flow ends, and which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// When the flow ends.
    pub(super) end_ns: u64,
    /// Order in which flows were started; settles equal ends.
    pub(super) started: u64,
    /// The flow's slot.
    pub(super) slot: u32,
}

/// Min-heap of [`Entry`]s that knows where each slot's entry is.
#[derive(Debug, Clone, Default)]
pub(super) struct Ends {
    heap: Vec<Entry>,
    /// Index in `heap` by slot; meaningless for slots without an entry.
    place: Vec<u32>,
}

impl Ends {
    /// The flow that ends first.
    pub(super) fn first(&self) -> Option<Entry> {
        self.heap.first().copied()
    }

    /// Adds a flow; its slot must have no entry.
    pub(super) fn insert(&mut self, end: Entry) {
        let slot = end.slot as usize;
        if slot >= self.place.len() {
            self.place.resize(slot + 1, u32::MAX);
        }
        self.heap.push(end);
        self.sift_up(self.heap.len() - 1, end);
    }

    /// Gives a flow another end.
    pub(super) fn change(&mut self, slot: u32, end_ns: u64) {
        let at = self.place[slot as usize] as usize;
        let old = self.heap[at];
        self.settle(at, Entry { end_ns, ..old });
    }

    /// Takes a flow out.
    pub(super) fn remove(&mut self, slot: u32) {
        let at = self.place[slot as usize] as usize;
        debug_assert_eq!(self.heap[at].slot, slot, "slot has no end");
        let Some(last) = self.heap.pop() else { return };
        if at < self.heap.len() {
            self.settle(at, last);
        }
    }

    /// Puts an entry at or above or below a free index.
    fn settle(&mut self, at: usize, end: Entry) {
        if at > 0 && end < self.heap[(at - 1) / 2] {
            self.sift_up(at, end);
        } else {
            self.sift_down(at, end);
        }
    }

    fn put(&mut self, at: usize, end: Entry) {
        self.heap[at] = end;
        self.place[end.slot as usize] = at as u32;
    }

    fn sift_up(&mut self, mut at: usize, end: Entry) {
        while at > 0 {
            let parent = self.heap[(at - 1) / 2];
            if parent < end {
                break;
            }
            self.put(at, parent);
            at = (at - 1) / 2;
        }
        self.put(at, end);
    }

    fn sift_down(&mut self, mut at: usize, end: Entry) {
        let len = self.heap.len();
        while 2 * at + 1 < len {
            let left = 2 * at + 1;
            let child = if left + 1 < len && self.heap[left + 1] < self.heap[left] { left + 1 } else { left };
            if end < self.heap[child] {
                break;
            }
            self.put(at, self.heap[child]);
            at = child;
        }
        self.put(at, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any mix of insert, change and remove keeps the least entry first.
        #[test]
        fn first_is_the_least(steps in prop::collection::vec((0_u32..20, 0_u64..50, 0_u8..4), 0..300)) {
            let mut ends = Ends::default();
            let mut model: Vec<Option<Entry>> = vec![None; 20];
            for (index, &(slot, end_ns, kind)) in steps.iter().enumerate() {
                match (&mut model[slot as usize], kind) {
                    (entry @ Some(_), 0) => {
                        ends.remove(slot);
                        *entry = None;
                    }
                    (Some(entry), _) => {
                        ends.change(slot, end_ns);
                        entry.end_ns = end_ns;
                    }
                    (entry @ None, _) => {
                        let end = Entry { end_ns, started: index as u64, slot };
                        ends.insert(end);
                        *entry = Some(end);
                    }
                }
                prop_assert_eq!(ends.first(), model.iter().flatten().min().copied());
            }
        }
    }
}
