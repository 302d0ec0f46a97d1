//! Both sides show that they know the receiver's key before either says anything of itself: a stranger learns that
//! something listens, and nothing else.
//!
//! ```text
//!   receiver                              sender
//!     Challenge  ------------------------->
//!                <-------------------------  Shown: whom it looks for, and that it knows the key
//!     Verdict    ------------------------->  that it is the one, and knows the key too
//!                <-------------------------  Greeting: the hello, bound to what was shown
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};
use splitcore_secret::hex::{Hex, Nonce, Proof};
use splitcore_secret::{Party, Secret, nonce, prove, verify};

use super::wire::{Bounded, Message, receive, send};
use super::{Hello, Incarnation};
use crate::error::HandshakeError;

/// Bytes of a message of somebody who has not shown to know the key.
const STRANGER_BYTES: u32 = 1 << 10;

/// The receiver's first message, to whoever has connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Challenge {
    nonce: Nonce,
}

/// The sender's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    /// Which life of the receiver it looks for.
    expects: Incarnation,
    nonce: Nonce,
    proof: Proof,
}

/// What the receiver says to that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It knows the key too.
    Proved(Proof),
    /// The life that is looked for is not here. It would listen here if it still lived.
    Another,
    /// Not let in.
    Refused(String),
}

/// A hello of one who has shown to know the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    pub(crate) hello: Hello,
    /// That the two were named so by one who knows the key, on this connection.
    proof: Proof,
}

impl Message for Challenge {
    const BYTES_MAX: u32 = STRANGER_BYTES;
}

impl Message for Shown {
    const BYTES_MAX: u32 = STRANGER_BYTES;
}

impl Message for Verdict {
    const BYTES_MAX: u32 = STRANGER_BYTES;
}

impl Message for Greeting {
    const BYTES_MAX: u32 = Hello::BYTES_MAX;
}

/// A connection whose two sides have shown to know the key.
pub(crate) struct Proven<'a> {
    secret: &'a Secret,
    challenge: Nonce,
    hello: Nonce,
}

fn names(hello: &Hello) -> String {
    format!("{} to {}", hello.incarnation, hello.expects)
}

fn drawn() -> Result<Nonce, HandshakeError> {
    nonce().map_err(|error| HandshakeError::Io { what: "random nonce".to_owned(), reason: error.to_string() })
}

/// Has whoever has connected show that it looks for `me` and knows the key. One who does not is told no more than that.
///
/// # Errors
/// It does not, or says nothing sensible in time.
pub(crate) fn demand<'a>(
    stream: &mut impl Bounded,
    me: Incarnation,
    secret: &'a Secret,
    within: Duration,
) -> Result<Proven<'a>, HandshakeError> {
    let proven = demanded(stream, me, secret, within);
    if let Err(error) = &proven {
        let is_another = *error == another();
        let verdict = if is_another { Verdict::Another } else { Verdict::Refused(error.to_string()) };
        // Best effort: the peer may be gone, or be no peer of ours.
        let _ = send(stream, &verdict, within);
    }
    proven
}

fn demanded<'a>(
    stream: &mut impl Bounded,
    me: Incarnation,
    secret: &'a Secret,
    within: Duration,
) -> Result<Proven<'a>, HandshakeError> {
    let challenge = drawn()?;
    send(stream, &Challenge { nonce: challenge }, within)?;
    let shown = receive::<Shown>(stream, within)?;
    if shown.expects != me {
        return Err(another());
    }
    if !verify(secret, Party::Sender, &challenge, &shown.nonce, "", &shown.proof) {
        return Err(wrong_proof());
    }
    let proof = prove(secret, Party::Receiver, &challenge, &shown.nonce, "");
    send(stream, &Verdict::Proved(proof), within)?;
    Ok(Proven { secret, challenge, hello: shown.nonce })
}

/// Shows to know the key of `expects`, and has it show the same.
///
/// # Errors
/// It is not there, does not know the key, or says nothing sensible in time.
pub(crate) fn show<'a>(
    stream: &mut impl Bounded,
    expects: Incarnation,
    secret: &'a Secret,
    within: Duration,
) -> Result<Proven<'a>, HandshakeError> {
    let challenge = receive::<Challenge>(stream, within)?.nonce;
    let hello = drawn()?;
    let proof = prove(secret, Party::Sender, &challenge, &hello, "");
    send(stream, &Shown { expects, nonce: hello, proof }, within)?;
    match receive::<Verdict>(stream, within)? {
        Verdict::Proved(proof) if verify(secret, Party::Receiver, &challenge, &hello, "", &proof) => {
            Ok(Proven { secret, challenge, hello })
        }
        Verdict::Proved(_) => Err(wrong_proof()),
        Verdict::Another => Err(HandshakeError::Refused(another().to_string())),
        Verdict::Refused(why) => Err(HandshakeError::Refused(why)),
    }
}

/// Asks whether `expects` is there, without knowing its key.
///
/// # Errors
/// No answer, or one that is none.
pub(crate) fn is_another(
    stream: &mut impl Bounded,
    expects: Incarnation,
    within: Duration,
) -> Result<bool, HandshakeError> {
    receive::<Challenge>(stream, within)?;
    send(stream, &Shown { expects, nonce: Hex([0; 16]), proof: Hex([0; 32]) }, within)?;
    Ok(receive::<Verdict>(stream, within)? == Verdict::Another)
}

fn another() -> HandshakeError {
    HandshakeError::Mismatch {
        field: "incarnation".to_owned(),
        ours: "another".to_owned(),
        theirs: "one that is not here".to_owned(),
    }
}

fn wrong_proof() -> HandshakeError {
    HandshakeError::Mismatch {
        field: "proof".to_owned(),
        ours: "another secret".to_owned(),
        theirs: "a proof that does not match".to_owned(),
    }
}

impl Proven<'_> {
    /// A hello, bound to this connection.
    pub(crate) fn greeting(&self, hello: Hello) -> Greeting {
        let proof = prove(self.secret, Party::Sender, &self.challenge, &self.hello, &names(&hello));
        Greeting { hello, proof }
    }

    /// The hello of a greeting.
    ///
    /// # Errors
    /// It was not said by whoever has shown to know the key.
    pub(crate) fn greeted(&self, greeting: Greeting) -> Result<Hello, HandshakeError> {
        let Greeting { hello, proof } = greeting;
        let right = verify(self.secret, Party::Sender, &self.challenge, &self.hello, &names(&hello), &proof);
        if right { Ok(hello) } else { Err(wrong_proof()) }
    }
}
