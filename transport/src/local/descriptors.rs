//! Passing descriptors to the other side of a local socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::error::HandshakeError;

/// The most that go in one message.
const MOST: usize = 8;

fn fault(reason: impl std::fmt::Display) -> HandshakeError {
    HandshakeError::Io { what: "passing descriptors".to_owned(), reason: reason.to_string() }
}

/// Sends descriptors, with one byte that says how many.
///
/// # Errors
/// The socket's.
pub(super) fn pass(stream: &UnixStream, fds: &[BorrowedFd<'_>]) -> Result<(), HandshakeError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if fds.len() > MOST || !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(fault(format!("{} of them, at most {MOST} are possible", fds.len())));
    }
    loop {
        match sendmsg(stream, &[IoSlice::new(&[fds.len() as u8])], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(fault(errno)),
        }
    }
}

/// Receives exactly `N` descriptors. Any others that came are closed.
///
/// # Errors
/// There were more or fewer; the socket's; the time that the socket is bounded by is up.
pub(super) fn take<const N: usize>(stream: &UnixStream) -> Result<[OwnedFd; N], HandshakeError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut count = [0_u8];
    let got = loop {
        match recvmsg(stream, &mut [IoSliceMut::new(&mut count)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(fault(errno)),
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.bytes == 0 {
        return Err(fault("the peer closed the connection"));
    }
    let found = fds.len();
    let more = if got.flags.contains(ReturnFlags::CTRUNC) { " and more" } else { "" };
    let malformed = || HandshakeError::Malformed(format!("{found} descriptors{more}, expected {N}"));
    if !more.is_empty() || usize::from(count[0]) != N {
        return Err(malformed());
    }
    fds.try_into().map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_arrive_and_a_wrong_number_is_refused() {
        let (here, there) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        pass(&here, &[file.as_fd(), file.as_fd()]).unwrap();
        assert_eq!(take::<2>(&there).unwrap().len(), 2);
        pass(&here, &[file.as_fd()]).unwrap();
        assert_eq!(take::<2>(&there).unwrap_err().to_string(), "not a handshake: 1 descriptors, expected 2");
        pass(&here, &[file.as_fd(); 3]).unwrap();
        assert_eq!(take::<2>(&there).unwrap_err().to_string(), "not a handshake: 3 descriptors, expected 2");
        rustix::io::write(&here, &[2]).unwrap();
        assert_eq!(take::<2>(&there).unwrap_err().to_string(), "not a handshake: 0 descriptors, expected 2");
    }
}
