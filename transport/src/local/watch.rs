//! Sees a process die, by a descriptor that becomes readable when it has.
//!
//! The system makes it so after the memory of the process is gone from its tables, so whatever it had mapped it
//! writes no more.

use std::ffi::c_int;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

unsafe extern "C" {
    /// Of the C library, which the standard library links.
    fn getsockopt(socket: c_int, level: c_int, name: c_int, value: *mut c_int, len: *mut u32) -> c_int;
}

const SOL_SOCKET: c_int = 1;
const SO_PEERPIDFD: c_int = 77;

impl Watch {
    /// A watch over the process that connected `stream`, or that listened for it; `None` when it has died already.
    ///
    /// # Errors
    /// The system gives no such descriptor.
    pub(crate) fn over_peer(stream: &UnixStream) -> std::io::Result<Option<Self>> {
        match peer_pidfd(stream) {
            Ok(fd) => Ok(Some(Self(fd))),
            Err(Errno::SRCH | Errno::INVAL) => Ok(None),
            // A kernel before 6.5 knows the number only, which could by now be another's: but then the peer has
            // died and its end of the socket is closed, which ends the connection.
            Err(_) => {
                let pid = rustix::net::sockopt::socket_peercred(stream)?.pid;
                match pidfd_open(pid, PidfdFlags::empty()) {
                    Ok(fd) => Ok(Some(Self(fd))),
                    Err(Errno::SRCH) => Ok(None),
                    Err(errno) => Err(errno.into()),
                }
            }
        }
    }

    /// Whether it has died.
    pub(crate) fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn peer_pidfd(stream: &UnixStream) -> Result<OwnedFd, Errno> {
    let (mut fd, mut len): (c_int, u32) = (-1, size_of::<c_int>() as u32);
    // SAFETY: `value` has room for the `len` bytes that the system may write, and both live through the call.
    let answer =
        unsafe { getsockopt(stream.as_raw_fd(), SOL_SOCKET, SO_PEERPIDFD, &raw mut fd, &raw mut len) };
    if answer != 0 || fd < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
        return Err(Errno::from_raw_os_error(errno));
    }
    // SAFETY: the system has just made the descriptor for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
