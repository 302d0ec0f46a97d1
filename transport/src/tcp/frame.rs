//! What goes over a stream: frames, and nothing else. No IO here.
//!
//! A frame is a head of 48 bytes, a tail that the head counts, and, for bytes of the cache, a payload. The head ends
//! in a CRC32C over itself and the tail, so both are known to be sound before a byte of the payload is read.
//!
//! ```text
//!   0  mark "KVf1"   4  kind   5  flags   6  layer: u16
//!   8  request: u64            16 slot: u32         20 generation: u32
//!   24 count: u32              28 tokens: u32       32 bytes: u64
//!   40 crc32c of a layer: u32  44 crc32c of head and tail: u32          all little-endian
//! ```
//!
//! | kind | tail | payload |
//! |---|---|---|
//! | put | `count` descriptors: block, offset, bytes, each a u32 | `bytes`, in the descriptors' order |
//! | show: the token of a transfer's grant, before any other frame of it | `count` = 16: the token | none |
//! | publish | none | none |
//! | drop: the sender gives a transfer up | none | none |
//! | bye: the sender's last frame | none | none |
//! | nack: the only one that a receiver sends | `count` bytes of text | none |

use splitcore_core::id::RequestId;
use splitcore_secret::Token;

use crate::transfer::TransferKey;
use crate::word::Generation;

/// Bytes of a head.
pub const HEAD: usize = 48;
/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = 12;
/// Descriptors of one frame.
pub const DESCRIPTORS_MAX: usize = 512;
/// Bytes of a nack's text.
pub const TEXT_MAX: usize = 512;
/// Bytes of a token.
pub const TOKEN: usize = 16;
/// Bytes of the longest tail.
pub const TAIL_MAX: usize = DESCRIPTORS_MAX * DESCRIPTOR;

const MARK: u32 = u32::from_le_bytes(*b"KVf1");
const HAS_CRC: u8 = 1;

/// A CRC32C (CRC-32/ISCSI) in the making.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crc(u32);

impl Crc {
    /// Of no bytes yet.
    pub const NEW: Self = Self(u32::MAX);

    /// Takes bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        use crc_fast::{CrcAlgorithm, Digest};
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.0));
        digest.update(bytes);
        self.0 = digest.get_state() as u32;
    }

    /// Of the bytes so far.
    pub fn value(self) -> u32 {
        !self.0
    }
}

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of a layer.
    Put,
    /// That the sender has a transfer's grant.
    Show,
    /// A layer is whole.
    Publish,
    /// The sender gives a transfer up.
    Drop,
    /// The sender has no more to say.
    Bye,
    /// The receiver refuses.
    Nack(Refusal),
}

/// Why a receiver refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The transfer was stopped.
    Stopped,
    /// It is not open to this sender.
    Unknown,
    /// A layer's bytes are not those that were sent: `tokens` is the checksum found, `crc32c` the one sent.
    Corrupt,
    /// What the text says.
    Denied,
    /// What the text says; the connection is over.
    Protocol,
}

/// A range of the receiver's pool that a payload goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The block that it begins in.
    pub block: u32,
    /// Where in the block.
    pub offset: u32,
    /// How many.
    pub bytes: u32,
}

/// The head of a frame, its fields as the [module](self) lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What it is for.
    pub kind: Kind,
    /// The transfer; a bye has none, and a nack that ends the connection need not.
    pub key: Option<TransferKey>,
    /// The layer.
    pub layer: u16,
    /// Of its tail.
    pub count: u32,
    /// Of a publish.
    pub tokens: u32,
    /// Of the payload, or of the layer.
    pub bytes: u64,
    /// Of the layer.
    pub crc32c: Option<u32>,
}

/// A frame that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first bytes are no mark.
    #[error("a frame that begins with {found:08x}, expected {MARK:08x}", MARK = MARK)]
    Mark {
        /// The bytes that are there.
        found: u32,
    },
    /// No such kind.
    #[error("a frame of kind {0}")]
    Kind(u8),
    /// Flags that nobody has.
    #[error("a frame with flags {0:#04x}")]
    Flags(u8),
    /// A generation that none can have, or no transfer where one is needed.
    #[error("a frame of generation {0}")]
    Generation(u32),
    /// A tail that is too long, or missing.
    #[error("a frame that counts {found} in its tail, expected {least} to {most}")]
    Count {
        /// What it says.
        found: u32,
        /// At least.
        least: u32,
        /// At most.
        most: u32,
    },
    /// Head and tail were changed on the way, or never fitted.
    #[error("a head with checksum {found:08x}, {expected:08x} is written in it")]
    Check {
        /// Of what came.
        found: u32,
        /// What it says.
        expected: u32,
    },
    /// A payload that is not the sum of its descriptors.
    #[error("a payload of {found} bytes whose descriptors come to {expected}")]
    Bytes {
        /// What the head says.
        found: u64,
        /// What the descriptors say.
        expected: u64,
    },
    /// A descriptor of nothing.
    #[error("a descriptor of 0 bytes")]
    Empty,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Self::Put => 1,
            Self::Publish => 2,
            Self::Drop => 3,
            Self::Bye => 4,
            Self::Show => 5,
            Self::Nack(Refusal::Stopped) => 16,
            Self::Nack(Refusal::Unknown) => 17,
            Self::Nack(Refusal::Corrupt) => 18,
            Self::Nack(Refusal::Denied) => 19,
            Self::Nack(Refusal::Protocol) => 20,
        }
    }

    fn of(code: u8) -> Result<Self, Malformed> {
        Ok(match code {
            1 => Self::Put,
            2 => Self::Publish,
            3 => Self::Drop,
            4 => Self::Bye,
            5 => Self::Show,
            16 => Self::Nack(Refusal::Stopped),
            17 => Self::Nack(Refusal::Unknown),
            18 => Self::Nack(Refusal::Corrupt),
            19 => Self::Nack(Refusal::Denied),
            20 => Self::Nack(Refusal::Protocol),
            _ => return Err(Malformed::Kind(code)),
        })
    }

    /// The least and the most that the tail counts.
    fn counts(self) -> (u32, u32) {
        match self {
            Self::Put => (1, DESCRIPTORS_MAX as u32),
            Self::Show => (TOKEN as u32, TOKEN as u32),
            Self::Publish | Self::Drop | Self::Bye => (0, 0),
            Self::Nack(_) => (0, TEXT_MAX as u32),
        }
    }

    fn needs_key(self) -> bool {
        !matches!(self, Self::Bye | Self::Nack(Refusal::Protocol))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at + 4)) << 32 | u64::from(word(bytes, at))
}

impl Head {
    /// A head of this kind and transfer, all else 0.
    pub fn new(kind: Kind, key: Option<TransferKey>) -> Self {
        Self { kind, key, layer: 0, count: 0, tokens: 0, bytes: 0, crc32c: None }
    }

    /// Reads a head; whether it is sound, [`check`](Self::check) says once the tail is there.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(bytes: &[u8; HEAD]) -> Result<Self, Malformed> {
        let found = word(bytes, 0);
        if found != MARK {
            return Err(Malformed::Mark { found });
        }
        let kind = Kind::of(bytes[4])?;
        let flags = bytes[5];
        if flags & !HAS_CRC != 0 {
            return Err(Malformed::Flags(flags));
        }
        let generation = word(bytes, 20);
        let request = RequestId(long(bytes, 8));
        let key = Generation::new(generation).map(|generation| TransferKey {
            request,
            slot: word(bytes, 16),
            generation,
        });
        if key.is_none() && (kind.needs_key() || generation != 0) {
            return Err(Malformed::Generation(generation));
        }
        let (found, (least, most)) = (word(bytes, 24), kind.counts());
        if !(least..=most).contains(&found) {
            return Err(Malformed::Count { found, least, most });
        }
        Ok(Self {
            kind,
            key,
            layer: u16::from_le_bytes([bytes[6], bytes[7]]),
            count: found,
            tokens: word(bytes, 28),
            bytes: long(bytes, 32),
            crc32c: (flags & HAS_CRC != 0).then_some(word(bytes, 40)),
        })
    }

    /// Bytes of the tail.
    pub fn tail_len(&self) -> usize {
        let each = if self.kind == Kind::Put { DESCRIPTOR } else { 1 };
        self.count as usize * each
    }

    /// Whether a head and its tail are what was sent.
    ///
    /// # Errors
    /// They are not.
    pub fn check(head: &[u8; HEAD], tail: &[u8]) -> Result<(), Malformed> {
        let (found, expected) = (checksum(head, tail), word(head, 44));
        if found == expected { Ok(()) } else { Err(Malformed::Check { found, expected }) }
    }

    /// Reads the descriptors of a put into `into`, which is emptied first.
    ///
    /// # Errors
    /// One is empty, or the payload is not their sum.
    pub fn descriptors(&self, tail: &[u8], into: &mut Vec<Descriptor>) -> Result<(), Malformed> {
        into.clear();
        let mut sum = 0;
        for each in tail.chunks_exact(DESCRIPTOR) {
            let descriptor = Descriptor { block: word(each, 0), offset: word(each, 4), bytes: word(each, 8) };
            if descriptor.bytes == 0 {
                return Err(Malformed::Empty);
            }
            sum += u64::from(descriptor.bytes);
            into.push(descriptor);
        }
        if sum == self.bytes { Ok(()) } else { Err(Malformed::Bytes { found: self.bytes, expected: sum }) }
    }

    /// Appends the frame of this head and `tail`, which `count` must count.
    pub fn encode(&self, tail: &[u8], into: &mut Vec<u8>) {
        debug_assert_eq!(self.tail_len(), tail.len(), "a tail that its head does not count");
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&MARK.to_le_bytes());
        head[4] = self.kind.code();
        head[5] = if self.crc32c.is_some() { HAS_CRC } else { 0 };
        head[6..8].copy_from_slice(&self.layer.to_le_bytes());
        if let Some(key) = self.key {
            head[8..16].copy_from_slice(&key.request.0.to_le_bytes());
            head[16..20].copy_from_slice(&key.slot.to_le_bytes());
            head[20..24].copy_from_slice(&key.generation.get().to_le_bytes());
        }
        head[24..28].copy_from_slice(&self.count.to_le_bytes());
        head[28..32].copy_from_slice(&self.tokens.to_le_bytes());
        head[32..40].copy_from_slice(&self.bytes.to_le_bytes());
        head[40..44].copy_from_slice(&self.crc32c.unwrap_or(0).to_le_bytes());
        let check = checksum(&head, tail);
        head[44..].copy_from_slice(&check.to_le_bytes());
        into.extend_from_slice(&head);
        into.extend_from_slice(tail);
    }

    /// Appends the frame that shows a transfer's token.
    pub fn encode_show(key: TransferKey, token: &Token, into: &mut Vec<u8>) {
        Self { count: TOKEN as u32, ..Self::new(Kind::Show, Some(key)) }.encode(token.bytes(), into);
    }

    /// Appends a put's frame, its payload excepted.
    pub fn encode_put(key: TransferKey, layer: u16, descriptors: &[Descriptor], into: &mut Vec<u8>) {
        let mut tail = Vec::with_capacity(descriptors.len() * DESCRIPTOR);
        for descriptor in descriptors {
            tail.extend_from_slice(&descriptor.block.to_le_bytes());
            tail.extend_from_slice(&descriptor.offset.to_le_bytes());
            tail.extend_from_slice(&descriptor.bytes.to_le_bytes());
        }
        let head = Self {
            layer,
            count: descriptors.len() as u32,
            bytes: descriptors.iter().map(|descriptor| u64::from(descriptor.bytes)).sum(),
            ..Self::new(Kind::Put, Some(key))
        };
        head.encode(&tail, into);
    }

    /// Appends a nack's frame; a text that is too long is cut.
    pub fn encode_nack(mut self, text: &str, into: &mut Vec<u8>) {
        let text = &text.as_bytes()[..text.len().min(TEXT_MAX)];
        self.count = text.len() as u32;
        self.encode(text, into);
    }
}

fn checksum(head: &[u8; HEAD], tail: &[u8]) -> u32 {
    let mut crc = Crc::NEW;
    crc.update(&head[..HEAD - 4]);
    crc.update(tail);
    crc.value()
}
