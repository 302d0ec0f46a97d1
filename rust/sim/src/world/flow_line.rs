//! The stages of an engine, in a row: where a machine's passes in flight are, and until when.

use std::collections::VecDeque;

/// When a pass in flight is where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "units stand last")]
pub(super) struct TimedPass {
    pub(super) start_ns: u64,
    /// It is through the first stage.
    pub(super) entered_ns: u64,
    pub(super) end_ns: u64,
}

impl TimedPass {
    /// Time of the machine that it takes: that of each of its stages.
    pub(super) fn busy_ns(&self) -> u64 {
        self.entered_ns - self.start_ns
    }
}

/// A pass is on a stage from when it has left the stage before, and the pass ahead has left this one.
#[derive(Debug)]
pub(super) struct FlowLine {
    /// When the newest pass leaves each stage.
    free_ns: Vec<u64>,
    /// Oldest first.
    passes: VecDeque<TimedPass>,
}

impl FlowLine {
    pub(super) fn new(stages: u32) -> Self {
        Self { free_ns: vec![0; stages as usize], passes: VecDeque::new() }
    }

    /// A pass starts that takes `first_ns` on the first stage and `all_ns` on an empty line; the other stages are equal.
    pub(super) fn enter(&mut self, now_ns: u64, first_ns: u64, all_ns: u64) -> TimedPass {
        let others = self.free_ns.len() as u64 - 1;
        let other_ns = (all_ns - first_ns).checked_div(others).unwrap_or(0);
        let (mut end_ns, mut stage_ns) = (now_ns, first_ns);
        for free_ns in &mut self.free_ns {
            end_ns = end_ns.max(*free_ns) + stage_ns;
            *free_ns = end_ns;
            stage_ns = other_ns;
        }
        let pass = TimedPass { start_ns: now_ns, entered_ns: self.free_ns[0], end_ns };
        self.passes.push_back(pass);
        pass
    }

    /// The oldest pass has ended.
    pub(super) fn leave(&mut self) {
        self.passes.pop_front();
    }

    /// The passes in flight, oldest first.
    pub(super) fn passes(&self) -> impl Iterator<Item = &TimedPass> {
        self.passes.iter()
    }

    /// Nothing is in flight any more.
    pub(super) fn clear(&mut self) {
        self.free_ns.fill(0);
        self.passes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(pass: TimedPass) -> (u64, u64, u64) {
        (pass.start_ns, pass.entered_ns, pass.end_ns)
    }

    #[test]
    fn passes_follow_one_another_stage_by_stage() {
        let mut line = FlowLine::new(3);
        assert_eq!(times(line.enter(0, 10, 30)), (0, 10, 30));
        assert_eq!(times(line.enter(10, 10, 30)), (10, 20, 40));
        assert_eq!(times(line.enter(20, 1, 3)), (20, 21, 41), "a short pass waits for the long one ahead");
        assert_eq!(times(line.enter(100, 1, 3)), (100, 101, 103), "an idle line makes nobody wait");
        assert_eq!(times(line.enter(200, 7, 13)), (200, 207, 213), "the first stage may take longer");
        line.leave();
        assert_eq!(line.passes().next().map(|pass| pass.end_ns), Some(40));
    }

    #[test]
    fn one_stage_is_one_pass_at_a_time() {
        let mut line = FlowLine::new(1);
        assert_eq!(times(line.enter(5, 7, 7)), (5, 12, 12));
        line.clear();
        assert_eq!(line.passes().count(), 0);
        assert_eq!(times(line.enter(5, 7, 7)), (5, 12, 12), "a machine that comes back has an empty line");
    }
}
