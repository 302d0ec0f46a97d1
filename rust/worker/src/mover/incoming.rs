//! What comes to this machine: leave to write is given, what lands is told, and no slot is free while somebody may write.

use splitcore_core::id::LegKey;
use splitcore_core::kv::BlockId;
use splitcore_transport::{Arrival, Incarnation, TransferError, TransferKey};
use splitcore_wire::message::PeerAddress;

use super::books::{Books, Name, Shared};
use super::{MoverError, MoverEvent, endpoint_of};

/// A transfer that may come here.
pub(super) struct Slot {
    leg: LegKey,
    number: u64,
    key: TransferKey,
    writer: Incarnation,
    blocks: Vec<BlockId>,
    /// The transport's grant.
    text: String,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// What is missing will not come.
    Failed,
    /// The driver waits until it is fenced.
    Aborted,
    /// Nobody waits for it: it is to be free as soon as it is fenced.
    Closed,
}

fn name(key: TransferKey) -> Name {
    (key.slot, key.generation.get())
}

impl Shared {
    pub(super) fn open(
        &self,
        leg: LegKey,
        source: &PeerAddress,
        blocks: &[BlockId],
        tokens: u32,
    ) -> Result<String, MoverError> {
        let endpoint = endpoint_of(source).map_err(MoverError::Text)?;
        let writer = endpoint.incarnation;
        let mut books = self.books();
        books.other(source.machine, &endpoint);
        let known = books.coming.get(&leg).and_then(|name| books.slots.get(name));
        if let Some(slot) = known {
            match slot.state {
                State::Open if slot.writer == writer && slot.blocks == blocks => {
                    return Ok(slot.text.clone());
                }
                // It may still be written.
                State::Failed | State::Aborted => {
                    return Err(TransferError::NotFenced { key: slot.key }.into());
                }
                State::Open | State::Closed => self.forsake(&mut books, leg),
            }
        }
        let layout = &self.pool.shape().layout;
        let token_bytes = u64::from(layout.layer_block_bytes()) / u64::from(layout.block_tokens);
        let layer_bytes = u64::from(tokens) * token_bytes;
        let grant = self.landing.open(writer, leg.request, blocks.to_vec(), layer_bytes)?;
        let text = serde_json::to_string(&grant).map_err(|error| MoverError::Text(error.to_string()))?;
        let number = books.number(leg);
        let slot = Slot {
            leg,
            number,
            key: grant.key,
            writer,
            blocks: blocks.to_vec(),
            text: text.clone(),
            state: State::Open,
        };
        books.slots.insert(name(grant.key), slot);
        books.coming.insert(leg, name(grant.key));
        Ok(text)
    }

    pub(super) fn close(&self, leg: LegKey) {
        let mut books = self.books();
        self.forsake(&mut books, leg);
        self.forget(&mut books, leg);
        books.current.remove(&leg);
    }

    /// Frees the slot of a leg, now or as soon as it may be.
    fn forsake(&self, books: &mut Books, leg: LegKey) {
        let Some(name) = books.coming.remove(&leg) else { return };
        let Some(slot) = books.slots.get_mut(&name) else { return };
        slot.state = State::Closed;
        if self.landing.release(slot.key).is_ok() {
            books.slots.remove(&name);
        } else {
            // One that is stopped already stays so.
            let _ = self.landing.stop(slot.key);
        }
    }

    pub(super) fn abort(&self, leg: LegKey) {
        let mut books = self.books();
        let name = books.coming.get(&leg).copied();
        let Some(slot) = name.and_then(|name| books.slots.get_mut(&name)) else {
            // Nobody has leave to write.
            let transfer = books.current.get(&leg).copied().unwrap_or_else(|| books.number(leg));
            return self.tell(&books, MoverEvent::Fenced { key: leg, transfer });
        };
        slot.state = State::Aborted;
        // The watcher hears that it is fenced.
        let _ = self.landing.stop(slot.key);
    }

    /// What the landing has to tell. Gives a machine that is to be doubted.
    pub(super) fn hear_arrival(&self, books: &mut Books, arrival: Arrival) -> Option<Incarnation> {
        match arrival {
            Arrival::Layers { key, layers, of } => {
                let slot = books.slots.get(&name(key)).filter(|slot| slot.state == State::Open)?;
                let (key, transfer) = (slot.leg, slot.number);
                self.tell(books, MoverEvent::Landed { key, transfer, layers, of });
                None
            }
            Arrival::Failed(key, error) => {
                let slot = books.slots.get_mut(&name(key))?;
                if slot.state == State::Open {
                    slot.state = State::Failed;
                }
                matches!(error, TransferError::PeerLost { .. }).then_some(slot.writer)
            }
            Arrival::Fenced(key) => {
                let slot = books.slots.remove(&name(key))?;
                // It can be: it is fenced.
                let _ = self.landing.release(slot.key);
                if books.coming.get(&slot.leg) == Some(&name(key)) {
                    books.coming.remove(&slot.leg);
                }
                if slot.state == State::Aborted {
                    self.tell(books, MoverEvent::Fenced { key: slot.leg, transfer: slot.number });
                }
                None
            }
        }
    }
}
