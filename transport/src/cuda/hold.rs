//! Who has a receiver's memory open. The receiver may not free it before they have closed it, and cannot see that
//! they have; so each sender holds a pipe, and says on it that it has. A sender that dies says nothing, and is seen
//! to die.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::local::Watch;
use crate::sockets::ready;

/// The sender's end.
#[derive(Debug)]
pub(super) struct Hold(OwnedFd);

impl Hold {
    /// To be made before anything of the receiver's is opened.
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl Drop for Hold {
    /// To be dropped after everything of the receiver's is closed: it says so.
    fn drop(&mut self) {
        // The pipe is empty, so it takes a byte; a receiver that is gone needs none.
        let _ = rustix::io::write(&self.0, &[1]);
    }
}

/// The receiver's end.
#[derive(Debug)]
pub(super) struct Held {
    pipe: OwnedFd,
    watch: Watch,
}

impl Held {
    /// A pipe to the process that `watch` watches: its end, for the sender, and ours.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new(watch: Watch) -> std::io::Result<(OwnedFd, Self)> {
        let (pipe, end) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok((end, Self { pipe, watch }))
    }

    /// Keeps `what` until the sender has let go or died: that is so by now, or a thread waits for it.
    pub(super) fn keep<T: Send + 'static>(self, what: T) {
        if self.watch.is_dead() || self.has_let_go() {
            return;
        }
        // Without a thread the memory stays until the process ends, which is the safe side.
        let what = ManuallyDrop::new(what);
        let waiting = move || {
            self.wait();
            drop(ManuallyDrop::into_inner(what));
        };
        drop(std::thread::Builder::new().name("kv-held".to_owned()).spawn(waiting));
    }

    fn wait(&self) {
        if let Ok([false, true]) = ready([(self.watch.as_fd(), false), (self.pipe.as_fd(), false)], None)
            && !self.has_let_go()
        {
            // Its end was closed without a word: it is dying.
            let _ = ready([(self.watch.as_fd(), false)], None);
        }
    }

    /// Whether the sender has said so.
    fn has_let_go(&self) -> bool {
        let is_there = ready([(self.pipe.as_fd(), false)], Some(Duration::ZERO));
        matches!(is_there, Ok([true])) && matches!(rustix::io::read(&self.pipe, &mut [0_u8; 1]), Ok(1))
    }
}
