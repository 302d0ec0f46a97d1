//! The socket of a connection after its handshake: messages queue, and one thread sends and hears them.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::message::{BYTES, Message};
use super::watch::Watch;
use crate::sockets::{Flag, ready};

/// Bytes that may wait for a peer that does not read. Messages are at most a few for each open transfer, so a peer
/// with more than these does not work as it should.
const WAITING_MAX: usize = 1 << 20;

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The other said goodbye: nothing of ours is mapped there any more.
    Bye,
    /// The other's process has died.
    Dead,
    /// The connection is closed, by either side; the other may live on.
    Closed,
    /// The other said something that is no message.
    Broken(String),
    /// The flag that was given to [`Line::attend`] was raised.
    Asked,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Line {
    stream: UnixStream,
    waiting: Mutex<VecDeque<u8>>,
    wake: Flag,
}

impl Line {
    /// A line over a socket whose handshake is over.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, waiting: Mutex::default(), wake: Flag::new()? })
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message. Never waits.
    pub(crate) fn send(&self, message: Message) {
        let mut waiting = self.waiting();
        if waiting.len() + BYTES > WAITING_MAX {
            return self.close();
        }
        waiting.extend(message.encode());
        drop(waiting);
        self.wake.raise();
    }

    /// Closes the connection; whoever attends it hears so.
    pub(crate) fn close(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Sends what waits, as far as the other reads; says whether more is left.
    pub(crate) fn flush(&self) -> bool {
        let mut waiting = self.waiting();
        while !waiting.is_empty() {
            match rustix::net::send(&self.stream, waiting.as_slices().0, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(waiting.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                // That the line is broken is found by who reads.
                Err(_) => waiting.clear(),
            }
        }
        false
    }

    /// Sends what is queued and gives what comes to `each`, until the connection ends, the other dies or `asked` is
    /// raised.
    pub(crate) fn attend(&self, watch: &Watch, asked: &Flag, mut each: impl FnMut(Message)) -> Ending {
        let mut heard = Vec::with_capacity(4096);
        loop {
            let more = self.flush();
            let watched = [
                (self.stream.as_fd(), more),
                (watch.as_fd(), false),
                (self.wake.as_fd(), false),
                (asked.as_fd(), false),
            ];
            let Ok([socket, died, woken, stop]) = ready(watched, None) else { return Ending::Closed };
            if woken {
                self.wake.lower();
            }
            // What the other said before it died still counts.
            if socket && let Some(ending) = self.hear(&mut heard, &mut each) {
                return if ending == Ending::Closed && watch.is_dead() { Ending::Dead } else { ending };
            }
            if died {
                return Ending::Dead;
            }
            if stop {
                self.flush();
                return Ending::Asked;
            }
        }
    }

    /// Reads once, so that one who talks without end holds up nothing else.
    fn hear(&self, heard: &mut Vec<u8>, each: &mut impl FnMut(Message)) -> Option<Ending> {
        let mut buffer = [0_u8; 4096];
        match rustix::net::recv(&self.stream, &mut buffer, RecvFlags::empty()) {
            Ok((0, _)) => return Some(Ending::Closed),
            Ok((count, _)) => heard.extend_from_slice(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(_) => return Some(Ending::Closed),
        }
        let whole = heard.len() / BYTES * BYTES;
        let (messages, _) = heard[..whole].as_chunks::<BYTES>();
        for &bytes in messages {
            match Message::decode(bytes) {
                Ok(Message::Bye) => return Some(Ending::Bye),
                Ok(message) => each(message),
                Err(why) => return Some(Ending::Broken(why)),
            }
        }
        heard.drain(..whole);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use splitcore_core::id::RequestId;

    use super::*;
    use crate::transfer::TransferKey;
    use crate::word::Generation;

    fn pair() -> (Line, UnixStream, Watch) {
        let (here, there) = UnixStream::pair().unwrap();
        let watch = Watch::over_peer(&here).unwrap().unwrap();
        (Line::new(here).unwrap(), there, watch)
    }

    fn stopped(slot: u32) -> Message {
        Message::Stopped(TransferKey { request: RequestId(1), slot, generation: Generation::FIRST })
    }

    #[test]
    fn messages_in_pieces_are_heard_whole_and_in_order() {
        let (line, mut there, watch) = pair();
        let asked = Flag::new().unwrap();
        let bytes: Vec<u8> = (0..50).flat_map(|slot| stopped(slot).encode()).collect();
        let writing = std::thread::spawn(move || {
            for piece in bytes.chunks(7) {
                there.write_all(piece).unwrap();
            }
            there.write_all(&Message::Bye.encode()).unwrap();
            there
        });
        let mut heard = Vec::new();
        assert_eq!(line.attend(&watch, &asked, |message| heard.push(message)), Ending::Bye);
        assert_eq!(heard, (0..50).map(stopped).collect::<Vec<_>>());
        drop(writing.join());
    }

    #[test]
    fn what_is_no_message_ends_the_connection_with_the_reason() {
        let (line, mut there, watch) = pair();
        there.write_all(&[0xff; BYTES]).unwrap();
        let ending = line.attend(&watch, &Flag::new().unwrap(), |_| panic!("nothing was said"));
        assert!(matches!(ending, Ending::Broken(why) if why.contains("begins with [ff, ff, ff, ff]")));
    }

    #[test]
    fn a_peer_that_does_not_read_holds_up_nobody_and_is_cut_off() {
        let (line, there, watch) = pair();
        for slot in 0..(2 * WAITING_MAX / BYTES) as u32 {
            line.send(stopped(slot));
        }
        let ending = line.attend(&watch, &Flag::new().unwrap(), |_| panic!("nothing was said"));
        assert_eq!(ending, Ending::Closed);
        drop(there);
    }
}
