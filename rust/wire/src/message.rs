//! What the three kinds of connection carry. The core's own types are the payload: nothing is said twice in two shapes.
//!
//! Each connection has one side that was connected to (a daemon, or the worker whose KV another wants) and one that
//! dialled. The first always speaks first, asks for proof, and sends the heartbeat.

use splitcore_core::event::Registration;
use splitcore_core::id::{AssignmentSeq, Epoch, LegKey, MachineId};
use splitcore_core::kv::KvLayout;
use splitcore_core::leg::{Command, Notice, Peer, Work};

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::auth::Key;
use crate::hex::{Nonce, Proof};
use crate::text::plain;

/// The version of all that is in this module. Two sides speak the same one or not at all.
pub const PROTOCOL: u32 = 2;

/// How output tokens are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// The share of probability that is drawn from, above 0 and at most 1.
    pub top_p: f64,
    /// So many output tokens there are before one of `stop_ids` may be drawn.
    #[serde(default)]
    pub min_tokens: u32,
    /// The draw of token `i` depends on this and `i` alone, so that a stream that goes on elsewhere is unbroken.
    pub seed: u64,
}

/// What an engine must know of a request, and the core need not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Descriptor {
    /// What the client calls it.
    pub name: String,
    /// The prompt of this attempt: the client's, and behind it the output tokens of earlier attempts.
    pub prompt: Vec<u32>,
    /// How to draw.
    pub sampling: Sampling,
    /// Texts that end the output.
    #[serde(deserialize_with = "few_texts")]
    pub stop: Vec<String>,
    /// Tokens that end the output.
    pub stop_ids: Vec<u32>,
    /// The daemon's own, given back as it came: what a new daemon needs to answer the client.
    #[serde(default)]
    pub note: String,
}

/// Texts that end one output, at most: in memory each is many times what an empty one is in a frame.
const STOPS_MAX: usize = 4096;

fn few_texts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {STOPS_MAX} texts")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<Self::Value, A::Error> {
            let mut few = Vec::new();
            while let Some(text) = texts.next_element()? {
                if few.len() == STOPS_MAX {
                    return Err(serde::de::Error::invalid_length(few.len() + 1, &self));
                }
                few.push(text);
            }
            Ok(few)
        }
    }
    from.deserialize_seq(Few)
}

impl Descriptor {
    /// Memory that it takes.
    pub fn held_bytes(&self) -> u64 {
        let tokens = size_of::<u32>() * (self.prompt.capacity() + self.stop_ids.capacity());
        let texts = self.stop.iter().map(|text| size_of::<String>() + text.capacity()).sum::<usize>();
        let own = size_of::<Self>() + self.name.capacity() + self.note.capacity();
        (tokens + texts + own) as u64
    }

    /// What of it contradicts the work that it is for.
    ///
    /// # Errors
    /// The first such thing.
    pub fn check(&self, work: &Work) -> Result<(), DescriptorError> {
        self.check_covers(work)?;
        let (tokens, of) = (self.prompt.len() as u64, work.prompt_tokens);
        if tokens == u64::from(of) { Ok(()) } else { Err(DescriptorError::Prompt { tokens, of }) }
    }

    /// The same for one of several claims of a key: a leg that is being given up, and the request that is kept with the
    /// tokens that the leg has made. Their prompts begin alike, and this is the longest.
    ///
    /// # Errors
    /// The first such thing.
    pub fn check_covers(&self, work: &Work) -> Result<(), DescriptorError> {
        let (tokens, of) = (self.prompt.len() as u64, work.prompt_tokens);
        if tokens < u64::from(of) {
            return Err(DescriptorError::Prompt { tokens, of });
        }
        let Sampling { temperature, top_p, .. } = self.sampling;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(DescriptorError::Temperature(temperature));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(DescriptorError::TopP(top_p));
        }
        Ok(())
    }
}

/// A descriptor that cannot be right.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum DescriptorError {
    /// The prompt is longer or shorter than the work says.
    #[error("a prompt of {tokens} tokens for work on {of}")]
    Prompt {
        /// Tokens here.
        tokens: u64,
        /// Tokens of the work.
        of: u32,
    },
    /// Below 0, or not a number.
    #[error("temperature {0}: expected 0 or more")]
    Temperature(f64),
    /// Outside its range.
    #[error("top_p {0}: expected above 0, at most 1")]
    TopP(f64),
}

/// Where a machine is reached by other machines. Empty where it is not there any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Which machine.
    pub machine: MachineId,
    /// Where it takes peer connections: `host:port`, or `unix:/path`.
    pub peer: String,
    /// Where its transports take KV, in their own words.
    pub transfer: String,
    /// What whoever dials it must show to know.
    #[serde(default)]
    pub key: Key,
}

/// A worker says who it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// What people call it; unique.
    pub name: String,
    /// Its place, if it has had one.
    pub index: Option<u32>,
    /// Grows with every start of a worker of this name.
    pub incarnation: u32,
    /// The newest Cluster that it has spoken to; 0 for none.
    pub epoch: Epoch,
    /// What it runs.
    pub model: String,
    /// How its KV lies.
    pub layout: KvLayout,
    /// KV blocks that it has.
    pub blocks: u32,
    /// Positions that its model takes, prompt and output together; `None`: it does not say.
    #[serde(default)]
    pub context: Option<u32>,
    /// Where it takes peer connections; as in [`PeerAddress`].
    pub peer: String,
    /// Where its transports take KV; as in [`PeerAddress`].
    pub transfer: String,
    /// What whoever dials it must show to know, for those that the daemon has hand over to it or take from it.
    pub key: Key,
    /// For the other side's proof.
    pub nonce: Nonce,
    /// That it knows the secret, if there is one.
    pub proof: Option<Proof>,
}

/// A worker is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Its place from here on.
    pub machine: MachineId,
    /// Which Cluster speaks.
    pub epoch: Epoch,
    /// Time between two `Ping`s.
    pub ping_interval_ns: u64,
    /// A side that has said nothing for this long counts as gone.
    pub silence_limit_ns: u64,
    /// Bytes of a frame from here on, at most.
    pub frame_bytes_max: u32,
    /// That the daemon knows the secret, if there is one.
    pub proof: Option<Proof>,
}

/// A worker is not let in: what does not agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: expected {}, got {}", plain(.field), plain(.ours), plain(.theirs))]
pub struct Refusal {
    /// Which field of the `Hello`.
    pub field: String,
    /// What the side that refuses has or wants.
    pub ours: String,
    /// What it was told.
    pub theirs: String,
    /// Whether it is for good: what does not agree is what the worker is, or how both are set up, and not how things
    /// stand at the moment.
    #[serde(default)]
    pub permanent: bool,
}

/// Fields, and groups of them, that no later try agrees on.
const PERMANENT: [&str; 7] = ["protocol", "proof", "secret", "model", "context", "layout", "incarnation"];

impl Refusal {
    /// One of these values.
    #[allow(clippy::needless_pass_by_value, reason = "numbers and texts, each as it is at hand")]
    pub fn new(field: &str, ours: impl ToString, theirs: impl ToString) -> Self {
        let (ours, theirs) = (plain(&ours.to_string()), plain(&theirs.to_string()));
        let group = field.split('.').next().unwrap_or_default();
        Self { field: field.to_owned(), ours, theirs, permanent: PERMANENT.contains(&group) }
    }

    /// The same, for good.
    #[must_use]
    pub fn permanently(self) -> Self {
        Self { permanent: true, ..self }
    }
}

/// A command, and what a worker needs besides to carry it out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assigned {
    /// Its number: each is higher than the one before in the same session.
    pub seq: AssignmentSeq,
    /// The command.
    pub command: Command,
    /// With `Reserve`, `Compute` and `Keep`, which bring a request: what it is.
    #[serde(default)]
    pub descriptor: Option<Descriptor>,
    /// With `Reserve` and `Send`, which name another machine: where that is.
    #[serde(default)]
    pub peer: Option<PeerAddress>,
}

impl Assigned {
    /// The work of a command that brings a request.
    pub fn work(&self) -> Option<&Work> {
        match &self.command {
            Command::Reserve { work, .. } | Command::Compute { work, .. } | Command::Keep { work, .. } => {
                Some(work)
            }
            Command::Send { .. }
            | Command::Start { .. }
            | Command::Abort { .. }
            | Command::Release { .. }
            | Command::Confirm { .. } => None,
        }
    }

    /// The leg or request that the command is about.
    pub fn key(&self) -> LegKey {
        match self.command {
            Command::Reserve { key, .. }
            | Command::Compute { key, .. }
            | Command::Send { key, .. }
            | Command::Start { key }
            | Command::Abort { key }
            | Command::Keep { key, .. }
            | Command::Release { key }
            | Command::Confirm { key, .. } => key,
        }
    }

    /// The other machine that the command names.
    pub fn other(&self) -> Option<MachineId> {
        match self.command {
            Command::Reserve { source, .. } => Some(source),
            Command::Send { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// Output tokens of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Of which attempt.
    pub key: LegKey,
    /// Place of the first of them among all output tokens of the request, from 0. An attempt that resumes goes on
    /// counting where the one before was cut off.
    pub from: u32,
    /// The tokens.
    pub ids: Vec<u32>,
}

/// Worker to daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToDaemon {
    /// Who speaks.
    Hello(Box<Hello>),
    /// Before `Register`, to a Cluster of another epoch: what a claim is about. One for each claim.
    Describe {
        /// Of which claim.
        key: LegKey,
        /// What it is.
        descriptor: Box<Descriptor>,
    },
    /// The session begins: all that the worker holds.
    Register(Box<Registration>),
    /// What a machine tells its Cluster; reports are among it, and absolute.
    Notice(Notice),
    /// Output.
    Tokens(Tokens),
    /// The worker is to be stopped: it wants no new work, and what it has may go on elsewhere. When it holds nothing any
    /// more the daemon ends the session, and the machine is gone.
    Leave {},
    /// Answers a `Ping`.
    Pong {
        /// The number of the `Ping`.
        number: u64,
    },
    /// The last frame: why the connection ends.
    Close {
        /// For people.
        reason: String,
    },
}

/// Daemon to worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToWorker {
    /// The first frame of all.
    Challenge(Challenge),
    /// Let in.
    Welcome(Welcome),
    /// Not let in. The last frame.
    Refused(Refusal),
    /// The registration is taken; what it said goes on as the commands that follow say.
    Registered {
        /// By whom.
        epoch: Epoch,
    },
    /// Something to do.
    Command(Box<Assigned>),
    /// An output is as long as its client wants it: at a text that only the daemon looks for. It ends as at its cap, and
    /// is kept until `Release` like any other.
    Enough {
        /// Whose.
        key: LegKey,
        /// Output tokens that it has then, over all attempts.
        tokens: u32,
    },
    /// Still there?
    Ping {
        /// Counts from 1.
        number: u64,
    },
    /// The last frame: why the connection ends.
    Close {
        /// For people.
        reason: String,
    },
}

/// Whoever was connected to asks who is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// For the other side's proof.
    pub nonce: Nonce,
    /// Whether it wants one.
    pub secret: bool,
}

/// The machine that has set blocks aside shows the one that will write them that it may speak to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerProof {
    /// [`Key::name`] of the key of the life that it looks for.
    pub key: Nonce,
    /// For the other side's proof.
    pub nonce: Nonce,
    /// That it knows that key, and the secret, if there is one.
    pub proof: Proof,
}

/// And then says who it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerHello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Who speaks.
    pub address: PeerAddress,
    /// How its KV lies.
    pub layout: KvLayout,
    /// That whoever has shown to know the key is this machine, and speaks to that one.
    pub proof: Proof,
}

/// A peer is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerWelcome {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Who answers.
    pub machine: MachineId,
    /// Time between two `Ping`s.
    pub ping_interval_ns: u64,
    /// A side that has said nothing for this long counts as gone.
    pub silence_limit_ns: u64,
    /// That whoever has shown to know the key is this machine, and speaks to that one.
    pub proof: Proof,
}

/// What goes with a `Grant`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantBody {
    /// The block table of the leg at its destination, in position order.
    pub blocks: Vec<u32>,
    /// The transport's grant, in its own words.
    pub transfer: String,
}

/// Between two workers. The destination of a handoff dials its source; two that hand over to each other have two
/// connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToPeer {
    /// The first frame of all, from the source.
    Challenge(Challenge),
    /// The destination shows that it may speak to the source. Nothing is said of either before.
    Prove(PeerProof),
    /// The source shows that it is the one that was looked for.
    Proved {
        /// That it knows the key too.
        proof: Proof,
    },
    /// The destination says who it is.
    Hello(Box<PeerHello>),
    /// Let in.
    Welcome(PeerWelcome),
    /// Not let in. The last frame.
    Refused(Refusal),
    /// What two machines tell each other.
    Peer {
        /// The core's message.
        message: Peer,
        /// With a `Grant`, and only there.
        #[serde(default)]
        grant: Option<GrantBody>,
    },
    /// Output tokens of a leg that the source has drawn: the destination must have them before it decodes. From the
    /// source.
    Tokens(Tokens),
    /// Still there? From the source.
    Ping {
        /// Counts from 1.
        number: u64,
    },
    /// Answers a `Ping`.
    Pong {
        /// The number of the `Ping`.
        number: u64,
    },
    /// The last frame: why the connection ends.
    Close {
        /// For people.
        reason: String,
    },
}

/// The name of a message, as it stands on the wire.
pub trait Named {
    /// Its name.
    fn name(&self) -> &'static str;
}

impl Named for ToDaemon {
    fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Describe { .. } => "describe",
            Self::Register(_) => "register",
            Self::Notice(_) => "notice",
            Self::Tokens(_) => "tokens",
            Self::Leave {} => "leave",
            Self::Pong { .. } => "pong",
            Self::Close { .. } => "close",
        }
    }
}

impl Named for ToWorker {
    fn name(&self) -> &'static str {
        match self {
            Self::Challenge(_) => "challenge",
            Self::Welcome(_) => "welcome",
            Self::Refused(_) => "refused",
            Self::Registered { .. } => "registered",
            Self::Command(_) => "command",
            Self::Enough { .. } => "enough",
            Self::Ping { .. } => "ping",
            Self::Close { .. } => "close",
        }
    }
}

impl Named for ToPeer {
    fn name(&self) -> &'static str {
        match self {
            Self::Challenge(_) => "challenge",
            Self::Prove(_) => "prove",
            Self::Proved { .. } => "proved",
            Self::Hello(_) => "hello",
            Self::Welcome(_) => "welcome",
            Self::Refused(_) => "refused",
            Self::Peer { .. } => "peer",
            Self::Tokens(_) => "tokens",
            Self::Ping { .. } => "ping",
            Self::Pong { .. } => "pong",
            Self::Close { .. } => "close",
        }
    }
}
