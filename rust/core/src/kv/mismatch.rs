//! What two layouts must agree on, and where they do not.

use std::fmt;

use super::{KvLayout, Values};

/// Two layouts of different models, or of one model with different elements: no KV can move between them.
///
/// Layers, values, heads, their dimension and the dtype must agree. Block size, order, planes, arrangement and shard
/// may differ: [`super::plan_transfer`] translates them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    here: KvLayout,
    there: KvLayout,
}

impl Mismatch {
    /// The names of the fields that differ, always in the same order.
    pub fn fields(&self) -> Vec<&'static str> {
        let mut fields = Vec::new();
        self.each(&mut |field, _, _| {
            fields.push(field);
            Ok(())
        })
        .unwrap_or_default();
        fields
    }

    /// The first field that differs, and what it is here and there.
    pub fn first(&self) -> Option<(&'static str, String, String)> {
        let mut first = None;
        self.each(&mut |field, here, there| {
            first.get_or_insert_with(|| (field, here.to_string(), there.to_string()));
            Ok(())
        })
        .unwrap_or_default();
        first
    }

    /// Calls `tell` with each field that differs and its two values.
    fn each(
        &self,
        tell: &mut dyn FnMut(&'static str, &dyn fmt::Display, &dyn fmt::Display) -> fmt::Result,
    ) -> fmt::Result {
        let (here, there) = (&self.here, &self.there);
        let mut compare = |field, here: u16, there: u16| {
            if here == there { Ok(()) } else { tell(field, &here, &there) }
        };
        compare("layers", here.layers, there.layers)?;
        match (here.values, there.values) {
            (
                Values::Heads { heads, head_dim },
                Values::Heads { heads: other_heads, head_dim: other_head_dim },
            ) => {
                compare("heads", heads, other_heads)?;
                compare("head_dim", head_dim, other_head_dim)?;
            }
            (Values::Latent { dim }, Values::Latent { dim: other_dim }) => {
                compare("latent dim", dim, other_dim)?;
            }
            _ => tell("values", &kind(here.values), &kind(there.values))?,
        }
        if here.dtype == there.dtype {
            return Ok(());
        }
        tell("dtype", &here.dtype.name(), &there.dtype.name())
    }
}

fn kind(values: Values) -> &'static str {
    match values {
        Values::Heads { .. } => "heads",
        Values::Latent { .. } => "latent",
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "layouts differ: ";
        self.each(&mut |field, here, there| {
            write!(f, "{before}{field} {here} here, {there} there")?;
            before = "; ";
            Ok(())
        })
    }
}

impl std::error::Error for Mismatch {}

impl KvLayout {
    /// What keeps KV of this layout from becoming KV of the other, if anything does. For the handshake of two
    /// machines: this side is `here`, the other `there`.
    pub fn mismatch(&self, other: &Self) -> Option<Mismatch> {
        let agree = self.layers == other.layers && self.values == other.values && self.dtype == other.dtype;
        (!agree).then_some(Mismatch { here: *self, there: *other })
    }
}
