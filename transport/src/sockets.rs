//! Waiting on several descriptors at once, and being woken from outside.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Wakes a thread that waits in [`ready`]. Raised once it stays raised until it is lowered.
#[derive(Debug)]
pub(crate) struct Flag(OwnedFd);

impl Flag {
    /// A flag that is down.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Raises it.
    pub(crate) fn raise(&self) {
        // It can only fail when it is up 2^64 - 2 times over.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Lowers it; says whether it was up.
    pub(crate) fn lower(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 8]).is_ok()
    }
}

impl AsFd for Flag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of `watched` can be read (or written, where `true`), or has broken; at most `within`. Says which.
///
/// # Errors
/// The system's; an interrupted wait begins again, with the whole of `within`.
pub(crate) fn ready<const N: usize>(
    watched: [(BorrowedFd<'_>, bool); N],
    within: Option<Duration>,
) -> std::io::Result<[bool; N]> {
    let mut fds = watched.map(|(fd, write)| {
        let flags = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(fd, flags)
    });
    let timeout = within.map(|within| Timespec {
        tv_sec: within.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    });
    loop {
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(fds.map(|fd| !fd.revents().is_empty()))
}

/// Lets a reader of the socket sleep until so many bytes are there, or it has broken.
///
/// # Errors
/// The system's.
pub(crate) fn set_low_water(socket: &impl AsFd, bytes: i32) -> std::io::Result<()> {
    let size = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the option reads the number that is given by address and size.
    let done = unsafe {
        let option = (&raw const bytes).cast();
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, option, size)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
