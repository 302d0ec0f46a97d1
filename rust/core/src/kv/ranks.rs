//! Which rank sends which heads to which rank.
//!
//! The rule, for P source ranks, D destination ranks and K KV heads. With P <= K a head is on one source rank, and that
//! one sends it. With P > K it is on g = P/K source ranks and wanted by m destination ranks (D/K, or 1 where D <= K):
//! the j-th of the m gets it from the floor(j g / m)-th of the g, so that the g serve as many as each other, give or
//! take one. With D >= K this comes to source rank floor(r P / D) for destination rank r, as in vLLM's connectors.
//! Latent attention is the case K = 1.

use std::ops::Range;

use super::plan::check_pair;
use super::{KvLayout, PlanError};

impl KvLayout {
    /// The ranks of this machine that have a head of the model.
    fn holders(&self, head: u16) -> Range<u16> {
        let (heads, size) = (self.heads_and_dim().0, self.shard.size);
        if heads >= size {
            let rank = head / (heads / size);
            rank..rank + 1
        } else {
            let copies = size / heads;
            head * copies..(head + 1) * copies
        }
    }
}

/// The source rank that sends a head to the rank of `destination`, which has it.
fn sender(source: &KvLayout, destination: &KvLayout, head: u16) -> u16 {
    let (from, to) = (source.holders(head), destination.holders(head));
    let which = u32::from(destination.shard.rank - to.start);
    from.start + (which * from.len() as u32 / to.len() as u32) as u16
}

/// The heads of the model that the rank of `source` sends to that of `destination`; they are consecutive. Both layouts
/// are checked and agree.
pub(super) fn heads_sent(source: &KvLayout, destination: &KvLayout) -> Range<u16> {
    let (from, to) = (source.heads_here(), destination.heads_here());
    let both = from.start.max(to.start)..from.end.min(to.end);
    // A rank that shares a head with others has no other, so that the first speaks for all.
    if both.is_empty() || sender(source, destination, both.start) != source.shard.rank {
        return 0..0;
    }
    both
}

/// The source ranks that send anything to the rank of `destination`, ascending: those whose
/// [`super::plan_transfer`] to it is not empty, so as many as must publish before a layer has landed. `source` is the
/// layout of any rank of the source machine. O(heads of the destination rank).
///
/// # Errors
/// [`PlanError::Layout`] or [`PlanError::Incompatible`].
pub fn senders(source: &KvLayout, destination: &KvLayout) -> Result<Vec<u16>, PlanError> {
    check_pair(source, destination)?;
    let mut ranks: Vec<u16> =
        destination.heads_here().map(|head| sender(source, destination, head)).collect();
    ranks.dedup();
    Ok(ranks)
}
