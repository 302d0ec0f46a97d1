//! What the backends between two processes of one host share: a local socket on which the two talk of transfers, and
//! a watch that sees the other die.
//!
//! ```text
//!   receiver: serve                                     sender: call, then attend
//!     Challenge, Shown, Verdict  <------------------>      (JSON: both know the key)
//!     Hello    <------------------------------------      (JSON, checked before this)
//!     Welcome  ------------------------------------>      (JSON)
//!     descriptors  -------------------------------->      SCM_RIGHTS
//!     Stop  --------------------------------------->      fences the transfer, then
//!     Stopped  <------------------------------------      writes no more for it
//!     GivenUp  <------------------------------------      stopped it of its own accord
//!     Settled  <------------------------------------      its copies are done (devices only)
//!     Bye  <----------------------------------------      has unmapped everything
//! ```
//!
//! The bytes and the publications do not come this way, so nothing here is in a hurry. Neither side ever waits for
//! the other to read: messages queue here, and the thread of the connection sends them.

mod call;
mod descriptors;
mod line;
mod message;
mod serve;
mod watch;

pub(crate) use call::{Call, Sending, call};
pub(crate) use line::Line;
pub(crate) use message::Message;
pub(crate) use serve::{Offered, serve};
pub(crate) use watch::Watch;
