//! One exhaustive match for each error of moving KV.

use pyo3::prelude::*;
use splitcore_core::kv::{LayoutError, PlanError, RANGE_BYTES_MAX, Side};
use splitcore_transport::{
    HandshakeError as CoreHandshake, MemoryError, TransferError as CoreTransfer, TransferKey as CoreKey,
};

use super::keys::TransferKey;
use crate::errors::{Fields, HandshakeError, TransferError, config};

fn key_of(error: &CoreTransfer) -> Option<CoreKey> {
    match error {
        CoreTransfer::Timeout { key, .. }
        | CoreTransfer::Stopped { key, .. }
        | CoreTransfer::PeerLost { key, .. }
        | CoreTransfer::Stalled { key, .. }
        | CoreTransfer::Unknown { key }
        | CoreTransfer::NoSuchLayer { key, .. }
        | CoreTransfer::Published { key, .. }
        | CoreTransfer::Refused { key, .. }
        | CoreTransfer::Overlap { key, .. }
        | CoreTransfer::GrantedTwice { key, .. }
        | CoreTransfer::Incomplete { key, .. }
        | CoreTransfer::StillPut { key, .. }
        | CoreTransfer::Corrupt { key, .. }
        | CoreTransfer::Denied { key, .. }
        | CoreTransfer::NotFenced { key } => Some(*key),
        CoreTransfer::OutsideSource { .. }
        | CoreTransfer::NoSlot { .. }
        | CoreTransfer::Busy { .. }
        | CoreTransfer::Protocol(_)
        | CoreTransfer::Io { .. }
        | CoreTransfer::Device { .. } => None,
    }
}

/// The word for it, and the layer.
fn kind_of(error: &CoreTransfer) -> (&'static str, Option<u16>) {
    match error {
        CoreTransfer::Timeout { layer, .. } => ("timeout", Some(*layer)),
        CoreTransfer::Stopped { layer, .. } => ("stopped", Some(*layer)),
        CoreTransfer::PeerLost { .. } => ("peer-lost", None),
        CoreTransfer::Stalled { .. } => ("stalled", None),
        CoreTransfer::Unknown { .. } => ("unknown", None),
        CoreTransfer::NoSuchLayer { layer, .. } => ("no-such-layer", Some(*layer)),
        CoreTransfer::Published { layer, .. } => ("published", Some(*layer)),
        CoreTransfer::Refused { layer, .. } => ("refused", Some(*layer)),
        CoreTransfer::Overlap { layer, .. } => ("overlap", Some(*layer)),
        CoreTransfer::GrantedTwice { .. } => ("refused", None),
        CoreTransfer::OutsideSource { .. } => ("outside-source", None),
        CoreTransfer::Incomplete { layer, .. } => ("incomplete", Some(*layer)),
        CoreTransfer::StillPut { layer, .. } => ("still-put", Some(*layer)),
        CoreTransfer::Denied { .. } => ("denied", None),
        CoreTransfer::Corrupt { layer, .. } => ("corrupt", Some(*layer)),
        CoreTransfer::NotFenced { .. } => ("not-fenced", None),
        CoreTransfer::NoSlot { .. } => ("no-slot", None),
        CoreTransfer::Busy { .. } => ("busy", None),
        CoreTransfer::Protocol(_) => ("protocol", None),
        CoreTransfer::Io { .. } => ("io", None),
        CoreTransfer::Device { .. } => ("device", None),
    }
}

/// Why a transfer or a call of one failed.
pub(super) fn transfer(py: Python<'_>, error: &CoreTransfer) -> PyErr {
    let (kind, layer) = kind_of(error);
    raise_transfer(py, kind, key_of(error), layer, error.to_string())
}

/// A call on what has been closed.
pub(super) fn closed(py: Python<'_>, what: &str) -> PyErr {
    raise_transfer(py, "closed", None, None, format!("the {what} is closed"))
}

fn raise_transfer(
    py: Python<'_>,
    kind: &str,
    key: Option<CoreKey>,
    layer: Option<u16>,
    text: String,
) -> PyErr {
    let fields = Fields::new(py).with("kind", kind).with("key", key.map(TransferKey)).with("layer", layer);
    fields.raise::<TransferError>(text)
}

/// Why two sides do not come together.
pub(super) fn handshake(py: Python<'_>, error: &CoreHandshake) -> PyErr {
    let (kind, field) = match error {
        CoreHandshake::Mismatch { field, .. } => ("mismatch", Some(field.as_str())),
        CoreHandshake::NoBackend(_) => ("no-backend", None),
        CoreHandshake::Refused(_) => ("refused", None),
        CoreHandshake::Malformed(_) => ("malformed", None),
        CoreHandshake::Timeout(_) => ("timeout", None),
        CoreHandshake::Io { .. } => ("io", None),
        CoreHandshake::Memory(error) => return memory(py, error),
    };
    Fields::new(py).with("kind", kind).with("field", field).raise::<HandshakeError>(error.to_string())
}

/// Why memory cannot be a pool.
pub(super) fn memory(py: Python<'_>, error: &MemoryError) -> PyErr {
    match error {
        MemoryError::Empty => config(py, "blocks", "at least 1", 0),
        MemoryError::TooShort { found, wanted } => {
            config(py, "buffer", &format!("at least {wanted} bytes"), format_args!("{found} bytes"))
        }
        MemoryError::Layout(error) => layout(py, "", error),
        MemoryError::NotSealed
        | MemoryError::NotABoard
        | MemoryError::System { .. }
        | MemoryError::Device(_) => raise_transfer(py, "memory", None, None, error.to_string()),
    }
}

/// Why no pool can have a layout; `side` stands before the option's name.
pub(super) fn layout(py: Python<'_>, side: &str, error: &LayoutError) -> PyErr {
    let option = |name: &str| format!("{side}{name}");
    match error {
        LayoutError::Zero(field) => {
            let name = if *field == "tensor-parallel size" { "tp_size" } else { field };
            config(py, &option(name), "at least 1", 0)
        }
        LayoutError::Rank(shard) => {
            let expected = format!("less than tp_size, {}", shard.size);
            config(py, &option("tp_rank"), &expected, shard.rank)
        }
        LayoutError::Heads { heads, size } => {
            let expected = format!("a divisor or a multiple of the {heads} heads");
            config(py, &option("tp_size"), &expected, size)
        }
        LayoutError::BlockTooLarge { bytes } => {
            let expected = format!("blocks of at most {} bytes", u32::MAX);
            config(py, &option("layout"), &expected, bytes)
        }
    }
}

/// Why there is no plan.
pub(super) fn plan(py: Python<'_>, error: &PlanError) -> PyErr {
    let name = |side: &Side| match side {
        Side::Source => "source",
        Side::Destination => "dest",
    };
    match error {
        PlanError::Layout { side, error } => layout(py, &format!("{}: ", name(side)), error),
        PlanError::Incompatible(mismatch) => {
            config(py, "dest", "layers, heads, head_dim and dtype of the source", mismatch)
        }
        PlanError::EmptySpan { start, end } => {
            config(py, "tokens", "at least one position", format_args!("{start} to {end}"))
        }
        PlanError::TableTooShort { side, blocks, needed } => {
            config(py, &format!("{}_table", name(side)), &format!("at least {needed} blocks"), blocks)
        }
        PlanError::OutsidePool { side, block, blocks } => {
            let expected = format!("block ids below {blocks}");
            config(py, &format!("{}_table", name(side)), &expected, block.0)
        }
        PlanError::Repeated { block } => {
            config(py, "dest_table", "each block once", format_args!("block {} again", block.0))
        }
        PlanError::TooManyRanges { limit } => {
            let expected = format!("at most {limit} ranges a layer, of at most {RANGE_BYTES_MAX} bytes");
            config(py, "tokens", &expected, "more")
        }
    }
}
