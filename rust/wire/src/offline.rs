//! A connection of a worker without a socket: bytes and messages in, events for the host out. For tests and fuzzers.

use splitcore_core::time::Time;
use tokio::sync::mpsc;

use crate::codec::Decoder;
use crate::hex::Hex;
use crate::listen::{ConnectionId, Handle, Heard, Say, What};
use crate::message::{ToDaemon, ToWorker};
use crate::session::{CloseReason, DaemonEvent, DaemonSession, Settings, Step};

/// A connection whose both ends are at hand.
pub struct Offline {
    id: ConnectionId,
    session: DaemonSession,
    decoder: Decoder,
    handle: Handle,
    says: mpsc::Receiver<Say>,
    steps: Vec<Step<ToWorker, DaemonEvent>>,
    told: Vec<ToWorker>,
    heard: Vec<Heard>,
}

impl Offline {
    /// A worker has connected.
    pub fn new(id: u64, settings: Settings) -> Self {
        let (handle, says) = Handle::new(settings.limits.queue_frames_max);
        let mut steps = Vec::new();
        let session = DaemonSession::new(settings, Hex([7; 16]), Time::ZERO, &mut steps);
        let (told, heard) = (Vec::new(), Vec::new());
        Self { id: ConnectionId(id), session, decoder: Decoder::new(), handle, says, steps, told, heard }
    }

    /// Bytes come from the worker.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
        while !self.session.is_closed() {
            match self.decoder.next::<ToDaemon>(self.session.frame_bytes_max()) {
                Ok(Some(message)) => self.session.receive(Time::ZERO, message, &mut self.steps),
                Ok(None) => break,
                Err(error) => self.session.close(error.into(), &mut self.steps),
            }
        }
        self.carry_out();
    }

    /// A message comes from the worker.
    pub fn say(&mut self, message: ToDaemon) {
        self.session.receive(Time::ZERO, message, &mut self.steps);
        self.carry_out();
    }

    /// The worker hangs up.
    pub fn hang_up(&mut self) {
        self.session.close(CloseReason::Io("end of stream".to_owned()), &mut self.steps);
        self.carry_out();
    }

    /// What the host is to hear, after what it has said so far was done.
    pub fn heard(&mut self) -> Vec<Heard> {
        while let Ok(say) = self.says.try_recv() {
            say.carry_out(&mut self.session, Time::ZERO, &mut self.steps);
        }
        self.carry_out();
        std::mem::take(&mut self.heard)
    }

    /// What the worker has been told.
    pub fn told(&mut self) -> Vec<ToWorker> {
        std::mem::take(&mut self.told)
    }

    /// Whether it is over.
    pub fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    fn carry_out(&mut self) {
        let connection = self.id;
        for step in std::mem::take(&mut self.steps) {
            let what = match step {
                Step::Send(message) => {
                    self.told.push(message);
                    continue;
                }
                Step::Event(DaemonEvent::Hello(hello)) => {
                    let from = format!("10.0.0.{}:1", connection.0 % 200);
                    What::Hello { hello, from, handle: self.handle.clone() }
                }
                Step::Event(event) => What::Event(event),
                Step::Close(reason) => What::Closed { reason },
            };
            self.heard.push(Heard { connection, what });
        }
    }
}
