//! Messages between the two sides: all of one length, so that no length is to be believed.

use splitcore_core::id::RequestId;

use crate::transfer::TransferKey;
use crate::word::Generation;

/// Bytes of every message.
pub(super) const BYTES: usize = 24;

const MARK: [u8; 4] = *b"kvc1";

/// What the two sides tell each other after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// Receiver: write no more for this transfer, and say so.
    Stop(TransferKey),
    /// Sender: nothing is written for it, and nothing will be.
    Stopped(TransferKey),
    /// Sender: as [`Stopped`](Self::Stopped), unasked.
    GivenUp(TransferKey),
    /// Sender: nothing of the receiver's is mapped any more.
    Bye,
    /// Sender: every byte of it is in place. Device copies may still be under way when their layers are published.
    Settled(TransferKey),
}

impl Message {
    /// Its bytes: mark, kind, three zeros, request, slot, generation.
    pub(super) fn encode(self) -> [u8; BYTES] {
        let (kind, key) = match self {
            Self::Stop(key) => (1, Some(key)),
            Self::Stopped(key) => (2, Some(key)),
            Self::GivenUp(key) => (3, Some(key)),
            Self::Bye => (4, None),
            Self::Settled(key) => (5, Some(key)),
        };
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MARK);
        bytes[4] = kind;
        if let Some(key) = key {
            bytes[8..16].copy_from_slice(&key.request.0.to_le_bytes());
            bytes[16..20].copy_from_slice(&key.slot.to_le_bytes());
            bytes[20..24].copy_from_slice(&key.generation.get().to_le_bytes());
        }
        bytes
    }

    /// The message of these bytes.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn decode(bytes: [u8; BYTES]) -> Result<Self, String> {
        let (mark, rest) = bytes.split_at(4);
        if mark != MARK {
            return Err(format!("a control message begins with {mark:02x?}, expected {MARK:02x?}"));
        }
        if rest[1..4] != [0; 3] {
            return Err("a control message has bytes where none belong".to_owned());
        }
        let four = |from: usize| u32::from_le_bytes([0, 1, 2, 3].map(|at| bytes[from + at]));
        let (low, high) = (four(8), four(12));
        let key = || {
            let number = four(20);
            let generation = Generation::new(number)
                .ok_or_else(|| format!("a control message of generation {number}, which there is not"))?;
            Ok::<_, String>(TransferKey {
                request: RequestId(u64::from(high) << 32 | u64::from(low)),
                slot: four(16),
                generation,
            })
        };
        match rest[0] {
            1 => Ok(Self::Stop(key()?)),
            2 => Ok(Self::Stopped(key()?)),
            3 => Ok(Self::GivenUp(key()?)),
            4 => Ok(Self::Bye),
            5 => Ok(Self::Settled(key()?)),
            kind => Err(format!("a control message of kind {kind}, expected 1 to 5")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> TransferKey {
        TransferKey { request: RequestId(0x0123_4567_89ab_cdef), slot: 7, generation: Generation::LAST }
    }

    #[test]
    fn every_message_is_read_as_it_was_written() {
        for message in [
            Message::Stop(key()),
            Message::Stopped(key()),
            Message::GivenUp(key()),
            Message::Bye,
            Message::Settled(key()),
        ] {
            assert_eq!(Message::decode(message.encode()), Ok(message));
        }
    }

    #[test]
    fn no_bytes_are_read_as_a_message_that_writes_otherwise() {
        let whole = Message::Stopped(key()).encode();
        for at in 0..BYTES {
            for bit in 0..8 {
                let mut bytes = whole;
                bytes[at] ^= 1 << bit;
                if let Ok(message) = Message::decode(bytes)
                    && message != Message::Bye
                {
                    assert_eq!(message.encode(), bytes);
                }
            }
        }
        assert!(Message::decode([0xff; BYTES]).is_err_and(|why| why.contains("begins with")));
        let mut unnumbered = whole;
        unnumbered[20..].fill(0);
        assert!(Message::decode(unnumbered).is_err_and(|why| why.contains("generation 0")));
    }
}
