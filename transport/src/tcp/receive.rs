//! The life of a connection at its receiver.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};

use super::frame::{Head, Kind, Refusal};
use super::intake::{CHUNK, Intake, Over, Step};
use crate::error::HandshakeError;
use crate::handshake::{Answer, Bounded as _, Hello, PROTOCOL, Welcome};
use crate::landing::Writer;
use crate::receiver::Serving;
use crate::sockets::{Flag, ready, set_low_water};
use crate::transfer::TransferKey;

/// Unsent answers, beyond what the kernel holds, at which a connection is closed: its sender hears nothing.
const ANSWERS_MAX: usize = 256 << 10;

/// The connection, as the landing sees it.
struct Handle {
    wake: Flag,
    /// Another connection of the same writer has ended.
    closed: AtomicBool,
    stops: Mutex<Vec<TransferKey>>,
    has_stops: AtomicBool,
}

impl Writer for Handle {
    fn writes_here(&self) -> bool {
        true
    }

    fn stop(&self, key: TransferKey) {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner).push(key);
        self.has_stops.store(true, Ordering::Release);
        self.wake.raise();
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake.raise();
    }
}

impl Handle {
    fn take_stops(&self) -> Vec<TransferKey> {
        if !self.has_stops.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.stops.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> HandshakeError {
    move |error| HandshakeError::Io { what: what.to_owned(), reason: error.to_string() }
}

/// The life of a connection at its receiver.
pub(crate) fn serve(mut stream: TcpStream, hello: &Hello, serving: &Serving) -> Result<(), HandshakeError> {
    let (landing, writer) = (&serving.landing, hello.incarnation);
    let Some(intake) = Intake::new(landing, writer, hello.checksums) else {
        return Err(HandshakeError::NoBackend("the pool is a device's".to_owned()));
    };
    super::tune(&stream, serving.options.stall_limit).map_err(io("tcp socket"))?;
    let handle = Arc::new(Handle {
        wake: Flag::new().map_err(io("eventfd"))?,
        closed: AtomicBool::new(false),
        stops: Mutex::default(),
        has_stops: AtomicBool::new(false),
    });
    let within = serving.options.handshake_within;
    let as_writer: Arc<dyn Writer> = handle.clone();
    if let Err(error) = landing.joined(writer, as_writer.clone()) {
        let _ = crate::handshake::send(&mut stream, &Answer::Refused(error.to_string()), within);
        return Err(error);
    }
    let welcome = Welcome {
        protocol: PROTOCOL,
        incarnation: landing.owner(),
        shape: *landing.pool().shape(),
        slots: landing.board().slots(),
        extra: serde_json::Value::Null,
    };
    let welcomed = crate::handshake::send(&mut stream, &Answer::Welcome(Box::new(welcome)), within)
        .and_then(|()| stream.bound(None).map_err(io("tcp socket")))
        .and_then(|()| stream.set_nonblocking(true).map_err(io("tcp socket")));
    let mut connection = Connection {
        stream,
        intake,
        handle,
        serving,
        active: true,
        quiet_since: Instant::now(),
        low_water: 1,
    };
    let over = if welcomed.is_ok() { connection.run() } else { Over::Broke };
    landing.parted(writer, &*as_writer, over == Over::Bye);
    if let Over::Protocol(reason) = &over {
        connection.say_why(reason);
    }
    // The receiver keeps a copy of the socket, so dropping this one closes nothing.
    let _ = connection.stream.shutdown(Shutdown::Both);
    welcomed
}

struct Connection<'a> {
    stream: TcpStream,
    intake: Intake<'a>,
    handle: Arc<Handle>,
    serving: &'a Serving,
    /// Whether the peer has sent or taken something since then.
    active: bool,
    quiet_since: Instant,
    /// Bytes that wake this thread.
    low_water: i32,
}

impl Connection<'_> {
    fn run(&mut self) -> Over {
        loop {
            match self.turn() {
                Ok(()) => {}
                Err(over) => return over,
            }
        }
    }

    fn turn(&mut self) -> Result<(), Over> {
        if self.handle.closed.load(Ordering::Acquire) {
            return Err(Over::Broke);
        }
        for key in self.handle.take_stops() {
            self.intake.stopped(key);
        }
        self.answer()?;
        if self.intake.answers.len() >= ANSWERS_MAX {
            return Err(Over::Protocol(format!(
                "{ANSWERS_MAX} bytes of answers that the sender does not take"
            )));
        }
        let stream = &self.stream;
        let step = self.intake.step(&mut |into| Ok(rustix::io::readv(stream, into)?))?;
        if step == Step::Goes {
            self.active = true;
            return Ok(());
        }
        self.wait()
    }

    /// Sends what the kernel takes of the answers.
    fn answer(&mut self) -> Result<(), Over> {
        if self.intake.answers.is_empty() {
            return Ok(());
        }
        match send(&self.stream, &self.intake.answers, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                self.intake.answers.drain(..sent);
                self.active = true;
                Ok(())
            }
            Err(errno) if errno == rustix::io::Errno::AGAIN || errno == rustix::io::Errno::INTR => Ok(()),
            Err(_) => Err(Over::Broke),
        }
    }

    /// Sleeps until there is something to do. One who stops in the middle of a frame, or takes no answers, is waited
    /// for so long and no longer.
    fn wait(&mut self) -> Result<(), Over> {
        if std::mem::take(&mut self.active) {
            self.quiet_since = Instant::now();
        }
        let unsent = !self.intake.answers.is_empty();
        let limit = self.serving.options.stall_limit;
        let owes = unsent || self.intake.is_amid();
        let within = owes.then(|| limit.saturating_sub(self.quiet_since.elapsed()));
        self.sleep_deep().map_err(|_| Over::Broke)?;
        let closing = self.serving.closing.as_fd();
        let watched = [(self.stream.as_fd(), unsent), (self.handle.wake.as_fd(), false), (closing, false)];
        let Ok([socket, woken, closes]) = ready(watched, within) else { return Err(Over::Broke) };
        if woken {
            self.handle.wake.lower();
        }
        if closes {
            return Err(Over::Broke);
        }
        if !owes {
            // What begins now has the whole time.
            self.active = true;
        } else if !socket && self.quiet_since.elapsed() >= limit && !self.has_some()? {
            let what = if unsent { "takes no answers" } else { "stopped in the middle of a frame" };
            return Err(Over::Protocol(format!("the sender {what} for {limit:?}")));
        }
        Ok(())
    }

    /// Of a payload, wakes only for as much as is read at once: a reader that gets up for every segment is slower by
    /// half, and takes the sender's processor for it.
    fn sleep_deep(&mut self) -> std::io::Result<()> {
        let mark = self.intake.due().clamp(1, CHUNK as u64) as i32;
        if mark != self.low_water {
            set_low_water(&self.stream, mark)?;
            self.low_water = mark;
        }
        Ok(())
    }

    /// Whether any byte is there: of a slow line they may be too few to wake for.
    fn has_some(&mut self) -> Result<bool, Over> {
        set_low_water(&self.stream, 1).map_err(|_| Over::Broke)?;
        self.low_water = 1;
        let looked = ready([(self.stream.as_fd(), false)], Some(Duration::ZERO)).map_err(|_| Over::Broke)?;
        Ok(looked[0])
    }

    /// Tells the sender what it did wrong. What it has sent meanwhile is read away, since a socket that is closed on
    /// unread bytes takes the answer with it; a sender that does not close either is left after the handshake's time.
    fn say_why(&mut self, reason: &str) {
        let mut frame = Vec::new();
        Head::new(Kind::Nack(Refusal::Protocol), None).encode_nack(reason, &mut frame);
        self.intake.answers.extend_from_slice(&frame);
        let until = Instant::now() + self.serving.options.handshake_within;
        let mut scratch = vec![0; 64 << 10];
        let mut told = false;
        loop {
            if !told && (self.answer().is_err() || self.intake.answers.is_empty()) {
                told = true;
                let _ = self.stream.shutdown(Shutdown::Write);
            }
            match self.stream.read(&mut scratch) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    let watched = [(self.stream.as_fd(), !told), (self.serving.closing.as_fd(), false)];
                    match ready(watched, Some(left)) {
                        Ok([true, false]) if left > Duration::ZERO => {}
                        _ => return,
                    }
                }
                Err(_) => return,
            }
            if Instant::now() >= until {
                return;
            }
        }
    }
}
