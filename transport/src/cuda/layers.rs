//! The receiver's events: how a stream waits for a layer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::{Event, EventUse, Fault, Handle, Stream};
use super::memory::{DeviceMemory, memory_of};
use crate::error::{MemoryError, TransferError};
use crate::landing::Landing;
use crate::transfer::TransferKey;
use crate::word::LayerSeal;

/// Between two looks at an event. The driver has no wait that ends, and a writer that dies may leave one without end.
const LOOK: Duration = Duration::from_micros(50);
/// The longest between two looks.
const LOOK_MAX: Duration = Duration::from_millis(2);

/// A receiver's layers on its device. The landing tells that they were published; their bytes are in place when the
/// layer's event is reached, and can be trusted when the transfer has settled ([`Landing::settled`]).
pub struct DeviceLayers {
    landing: Landing,
    events: Arc<Events>,
}

/// An event for each slot and, within it, each layer; and the memory, which senders have open as long as these.
pub(super) struct Events {
    pub(super) memory: Arc<DeviceMemory>,
    all: Vec<Event>,
    /// Their names for senders.
    pub(super) handles: Vec<Handle>,
}

impl Events {
    fn new(memory: Arc<DeviceMemory>, count: usize) -> Result<Self, Fault> {
        // Built up in place, so that a failure ends those that are there.
        let mut events = Self { memory, all: Vec::with_capacity(count), handles: Vec::with_capacity(count) };
        for _ in 0..count {
            let event = events.memory.driver().event(EventUse::Shared)?;
            events.all.push(event);
            events.handles.push(events.memory.driver().export_event(event)?);
        }
        Ok(events)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for &event in &self.all {
            // There is nobody to tell of a failure.
            let _ = self.memory.driver().end_event(event);
        }
    }
}

impl std::fmt::Debug for DeviceLayers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceLayers").field("landing", &self.landing).finish_non_exhaustive()
    }
}

impl DeviceLayers {
    /// Of a landing over a device's pool; `None` over any other.
    ///
    /// # Errors
    /// The device has no more events.
    pub(crate) fn of(landing: &Landing) -> Result<Option<Self>, MemoryError> {
        let Some(memory) = memory_of(landing.pool()) else { return Ok(None) };
        let board = landing.board();
        let count = board.slots() as usize * usize::from(board.layers());
        let events = Arc::new(Events::new(memory, count)?);
        Ok(Some(Self { landing: landing.clone(), events }))
    }

    pub(super) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    fn event(&self, key: TransferKey, layer: u16) -> Result<Event, TransferError> {
        let layers = self.landing.board().layers();
        let index = key.slot as usize * usize::from(layers) + usize::from(layer);
        self.events.all.get(index).copied().ok_or(TransferError::NoSuchLayer { key, layer, layers })
    }

    /// Sleeps until a layer is published, at most `within`, and lets `stream`, a `CUstream` of the pool's device, go on
    /// only when its bytes are in place. What the stream then makes of them can be trusted once the transfer has
    /// settled.
    ///
    /// # Errors
    /// As [`Landing::wait_layer`]; the device fails.
    pub fn wait_layer_on_stream(
        &self,
        key: TransferKey,
        layer: u16,
        stream: u64,
        within: Duration,
    ) -> Result<LayerSeal, TransferError> {
        let seal = self.landing.wait_layer(key, layer, within)?;
        let event = self.event(key, layer)?;
        self.events.memory.driver().hold(Stream(stream), event).map_err(|fault| device(&fault))?;
        Ok(seal)
    }

    /// Sleeps until the bytes of a layer are in place, at most `within`. They can be trusted once the transfer has
    /// settled.
    ///
    /// # Errors
    /// As [`Landing::wait_layer`]; the device fails.
    pub fn wait_layer(
        &self,
        key: TransferKey,
        layer: u16,
        within: Duration,
    ) -> Result<LayerSeal, TransferError> {
        let until = Instant::now() + within;
        let seal = self.landing.wait_layer(key, layer, within)?;
        let event = self.event(key, layer)?;
        let mut look = LOOK;
        loop {
            if self.events.memory.driver().reached(event).map_err(|fault| device(&fault))? {
                return Ok(seal);
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.landing.settled(key, Duration::ZERO) {
                Ok(()) => return Ok(seal),
                Err(TransferError::Timeout { peer, .. }) if left.is_zero() => {
                    return Err(TransferError::Timeout { key, layer, waited: within, peer });
                }
                Err(TransferError::Timeout { .. }) => {}
                Err(error) => return Err(error),
            }
            std::thread::sleep(look.min(left));
            look = (look * 2).min(LOOK_MAX);
        }
    }
}

fn device(fault: &Fault) -> TransferError {
    TransferError::Device { what: fault.what.to_owned(), reason: fault.reason.clone() }
}
