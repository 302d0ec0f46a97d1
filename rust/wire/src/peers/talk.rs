//! One connection between two workers, of either side.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use splitcore_core::leg::Peer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::hub::{Hub, SessionId};
use crate::message::{GrantBody, ToPeer, Tokens};
use crate::pipe::{Pipe, READ_BYTES};
use crate::session::{CloseReason, PeerEvent, PeerSession, Step};

/// What this machine says on a session.
#[derive(Debug)]
pub(super) enum Say {
    Message { message: Peer, grant: Option<GrantBody> },
    Tokens(Tokens),
}

/// Speaks on a session. Dropped, it ends the session.
#[derive(Debug)]
pub(super) struct Mouth {
    says: mpsc::Sender<Say>,
    slow: Arc<Notify>,
    end: oneshot::Sender<&'static str>,
}

/// What is to be said on a session, and whether it is to end.
#[derive(Debug)]
pub(super) struct Ear {
    says: mpsc::Receiver<Say>,
    slow: Arc<Notify>,
    end: oneshot::Receiver<&'static str>,
    over: Option<&'static str>,
}

/// A queue of so many frames.
pub(super) fn line(frames_max: u32) -> (Mouth, Ear) {
    let (sender, says) = mpsc::channel(frames_max.max(1) as usize);
    let (end, ended) = oneshot::channel();
    let slow = Arc::new(Notify::new());
    (Mouth { says: sender, slow: Arc::clone(&slow), end }, Ear { says, slow, end: ended, over: None })
}

impl Mouth {
    pub(super) fn say(&self, say: Say) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.says.try_send(say) {
            self.slow.notify_one();
        }
    }

    pub(super) fn end(self, reason: &'static str) {
        let _ = self.end.send(reason);
    }
}

impl Ear {
    /// Until the session is to end; says why.
    pub(super) async fn ended(&mut self) -> &'static str {
        if let Some(reason) = self.over {
            return reason;
        }
        let reason = (&mut self.end).await.unwrap_or("the session ends");
        self.over = Some(reason);
        reason
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Forgets what waits.
    pub(super) fn drain(&mut self) {
        while self.says.try_recv().is_ok() {}
    }
}

/// One connection.
pub(super) struct Talk<'a> {
    hub: &'a Hub,
    id: SessionId,
    session: PeerSession,
    steps: Vec<Step<ToPeer, PeerEvent>>,
    pipe: Pipe,
    /// Of a session that the other machine dials: for whoever is to speak, once it is known who that is.
    mouth: Option<Mouth>,
    proven: bool,
    opened: bool,
}

enum Turn {
    Wrote(io::Result<usize>),
    Read(io::Result<usize>),
    Say(Say),
    Slow,
    End(&'static str),
    Time,
}

impl<'a> Talk<'a> {
    /// `steps` are those that the session began with.
    pub(super) fn new(
        hub: &'a Hub,
        id: SessionId,
        session: PeerSession,
        steps: Vec<Step<ToPeer, PeerEvent>>,
        mouth: Option<Mouth>,
    ) -> Self {
        Self { hub, id, session, steps, pipe: Pipe::new(hub.limits()), mouth, proven: false, opened: false }
    }

    /// From the first frame to the last. Says why it is over, and whether the session was ever open.
    pub(super) async fn run<S: AsyncRead + AsyncWrite>(
        mut self,
        stream: S,
        ear: &mut Ear,
    ) -> (CloseReason, bool) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let reason = self.converse(&mut reader, &mut writer, ear).await;
        self.hub.closed(self.id);
        self.pipe.part(&mut reader, &mut writer).await;
        (reason, self.opened)
    }

    async fn converse<S: AsyncRead + AsyncWrite>(
        &mut self,
        reader: &mut ReadHalf<S>,
        writer: &mut WriteHalf<S>,
        ear: &mut Ear,
    ) -> CloseReason {
        let mut bytes = vec![0; READ_BYTES];
        let slow = Arc::clone(&ear.slow);
        loop {
            if let Some(reason) = self.carry_out() {
                return reason;
            }
            let deadline = self.deadline();
            let speaks = self.opened && self.pipe.has_room();
            let (says, end) = (&mut ear.says, &mut ear.end);
            let turn = tokio::select! {
                wrote = writer.write(self.pipe.unwritten()), if self.pipe.writes() => Turn::Wrote(wrote),
                read = reader.read(&mut bytes) => Turn::Read(read),
                Some(say) = says.recv(), if speaks => Turn::Say(say),
                () = slow.notified() => Turn::Slow,
                reason = end => Turn::End(reason.unwrap_or("the session ends")),
                () = tokio::time::sleep_until(deadline) => Turn::Time,
            };
            match turn {
                Turn::Wrote(Ok(wrote)) => self.pipe.wrote(wrote),
                Turn::Read(Ok(0)) => self.fail(CloseReason::Io("end of stream".to_owned())),
                Turn::Read(Ok(read)) => self.hear(&bytes[..read]),
                Turn::Wrote(Err(error)) | Turn::Read(Err(error)) => {
                    self.fail(CloseReason::Io(error.to_string()));
                }
                Turn::Say(say) => self.say(say),
                Turn::Slow if self.opened => {
                    let frames = self.hub.limits().queue_frames_max;
                    self.fail(CloseReason::Slow { frames });
                }
                // What waits for a session to open may be forgotten: the machine says it again when that is open.
                Turn::Slow => ear.drain(),
                Turn::End(reason) => {
                    ear.over = Some(reason);
                    self.fail(CloseReason::Closed(reason.to_owned()));
                }
                Turn::Time => {}
            }
            self.look_at_the_time();
        }
    }

    fn deadline(&self) -> Instant {
        let session = Duration::from_nanos(self.session.next_deadline().since(self.hub.now()));
        let deadline = Instant::now() + session.min(Duration::from_secs(3600));
        self.pipe.deadline().map_or(deadline, |frame| frame.min(deadline))
    }

    fn look_at_the_time(&mut self) {
        if let Some(reason) = self.pipe.stalled() {
            self.fail(reason);
        }
        self.session.tick(self.hub.now(), &mut self.steps);
    }

    fn fail(&mut self, reason: CloseReason) {
        self.session.close(reason, &mut self.steps);
    }

    fn hear(&mut self, bytes: &[u8]) {
        let now = self.hub.now();
        let (session, steps) = (&mut self.session, &mut self.steps);
        self.pipe.read(bytes, |decoder| {
            let mut any = false;
            while !session.is_closed() {
                match decoder.next::<ToPeer>(session.frame_bytes_max()) {
                    Ok(Some(message)) => session.receive(now, message, steps),
                    Ok(None) => break,
                    Err(error) => session.close(error.into(), steps),
                }
                any = true;
            }
            any
        });
    }

    fn say(&mut self, say: Say) {
        let steps = &mut self.steps;
        let _ = match say {
            Say::Message { message, grant } => self.session.say(message, grant, steps),
            Say::Tokens(tokens) => self.session.tokens(tokens, steps),
        };
    }

    /// Carries out what the session wants, in order.
    fn carry_out(&mut self) -> Option<CloseReason> {
        if self.session.is_proven() && !std::mem::replace(&mut self.proven, true) {
            self.hub.known(self.id);
        }
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Send(message) => {
                    if let Err(error) = self.pipe.push(&message) {
                        return Some(error.into());
                    }
                }
                Step::Event(event) => {
                    self.opened |= matches!(event, PeerEvent::Open { .. });
                    self.hub.hear(self.id, event, &mut self.mouth);
                }
                Step::Close(reason) => return Some(reason),
            }
        }
        None
    }
}
