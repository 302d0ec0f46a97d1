//! The sender's side of a local connection: the handshake, and the thread that hears the receiver.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::net::SendFlags;

use super::descriptors::take;
use super::line::{Ending, Line};
use super::message::Message;
use super::watch::Watch;
use crate::connect::{ConnectOptions, greet, local};
use crate::error::HandshakeError;
use crate::handshake::{Bounded, Endpoint, Hello, Welcome};
use crate::sockets::Flag;
use crate::transfer::TransferKey;

/// What the thread of a connection asks of its backend.
pub(crate) trait Sending: Send + Sync {
    /// The receiver has given a transfer up, known here or not. True: nothing is written for it any more, and nothing
    /// will be. False: that is not so yet, and the backend says [`Message::Stopped`] when it is.
    fn fence(&self, key: TransferKey) -> bool;

    /// The receiver is gone.
    fn lose(&self);
}

/// A connection that a receiver has welcomed. Dropped, it is closed, and says goodbye before: whatever was made of
/// the descriptors must be gone by then.
pub(crate) struct Call {
    line: Arc<Line>,
    /// Until a thread attends.
    watch: Option<Watch>,
    leaving: Arc<Flag>,
    thread: Option<JoinHandle<()>>,
}

fn io(error: &std::io::Error) -> HandshakeError {
    HandshakeError::Io { what: "local connection".to_owned(), reason: error.to_string() }
}

/// Calls a receiver by its local socket; it gives `N` descriptors.
///
/// # Errors
/// As [`crate::connect`].
pub(crate) fn call<const N: usize>(
    to: &Endpoint,
    hello: &Hello,
    options: &ConnectOptions,
) -> Result<(Call, Welcome, [OwnedFd; N]), HandshakeError> {
    let mut stream = local(to)?;
    let gone = || HandshakeError::Io {
        what: "local connection".to_owned(),
        reason: "the receiver has died".to_owned(),
    };
    let watch = Watch::over_peer(&stream).map_err(|error| io(&error))?.ok_or_else(gone)?;
    let greeted = greet(&mut stream, to, hello, options);
    if greeted.is_err() {
        // It may have let us in, or be about to.
        let _ = rustix::net::send(&stream, &Message::Bye.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
    let welcome = greeted?;
    stream.bound(Some(options.within)).map_err(|error| io(&error))?;
    let taken = take(&stream);
    let leaving = Arc::new(Flag::new().map_err(|error| io(&error))?);
    let line = Arc::new(Line::new(stream).map_err(|error| io(&error))?);
    // From here on, whatever fails, the goodbye is said.
    let call = Call { line, watch: Some(watch), leaving, thread: None };
    Ok((call, welcome, taken?))
}

impl Call {
    /// The line, for messages.
    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// Starts the thread that hears the receiver.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn attend(&mut self, sending: Arc<dyn Sending>) -> Result<(), HandshakeError> {
        let Some(watch) = self.watch.take() else { return Ok(()) };
        let (line, leaving) = (self.line.clone(), self.leaving.clone());
        let attending = move || {
            let answer = |message| {
                if let Message::Stop(key) = message
                    && sending.fence(key)
                {
                    line.send(Message::Stopped(key));
                }
            };
            if line.attend(&watch, &leaving, answer) != Ending::Asked {
                sending.lose();
                line.close();
            }
        };
        let thread = std::thread::Builder::new().name("kv-sender".to_owned()).spawn(attending);
        self.thread = Some(thread.map_err(|error| io(&error))?);
        Ok(())
    }

    /// Ends the thread, and with it its hold on the backend.
    pub(crate) fn leave(&mut self) {
        self.leaving.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.leave();
        self.line.send(Message::Bye);
        // Best effort: one who does not read learns by the closed socket, and then by our death.
        self.line.flush();
    }
}
