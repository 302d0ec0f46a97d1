//! The receiver's side of a local connection: its whole life after the hello.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::descriptors::pass;
use super::line::{Ending, Line};
use super::message::Message;
use super::watch::Watch;
use crate::error::{HandshakeError, TransferError};
use crate::handshake::{Answer, Hello, Incarnation, PROTOCOL, Welcome, send};
use crate::landing::{Landing, Writer};
use crate::receiver::Serving;
use crate::sockets::ready;
use crate::transfer::{PeerState, TransferKey};

/// What a backend gives a sender.
pub(crate) struct Offered<'a> {
    /// For the welcome.
    pub extra: serde_json::Value,
    /// What the sender maps.
    pub descriptors: &'a [BorrowedFd<'a>],
}

/// A sender, as the landing sees it.
struct Caller(Arc<Line>);

impl Writer for Caller {
    fn writes_here(&self) -> bool {
        false
    }

    fn stop(&self, key: TransferKey) {
        self.0.send(Message::Stop(key));
    }

    fn close(&self) {
        self.0.close();
    }
}

fn io(error: &std::io::Error) -> HandshakeError {
    HandshakeError::Io { what: "local connection".to_owned(), reason: error.to_string() }
}

/// Lets a sender in and hears it until it leaves, dies or the receiver closes.
///
/// # Errors
/// It could not be let in.
pub(crate) fn serve(
    mut stream: UnixStream,
    hello: &Hello,
    serving: &Serving,
    offered: &Offered<'_>,
) -> Result<(), HandshakeError> {
    let (landing, writer) = (&serving.landing, hello.incarnation);
    let within = serving.options.handshake_within;
    // Before it can map anything: from here on its death is seen.
    let Some(watch) = Watch::over_peer(&stream).map_err(|error| io(&error))? else { return Ok(()) };
    let line =
        Arc::new(Line::new(stream.try_clone().map_err(|error| io(&error))?).map_err(|error| io(&error))?);
    landing.until_left(writer, within);
    if let Err(error) = landing.joined(writer, Arc::new(Caller(line.clone()))) {
        let _ =
            blocking(&stream).and_then(|()| send(&mut stream, &Answer::Refused(error.to_string()), within));
        return Err(error);
    }
    let welcome = Welcome {
        protocol: PROTOCOL,
        incarnation: landing.owner(),
        shape: *landing.pool().shape(),
        slots: landing.board().slots(),
        extra: offered.extra.clone(),
    };
    let let_in = blocking(&stream)
        .and_then(|()| send(&mut stream, &Answer::Welcome(Box::new(welcome)), within))
        .and_then(|()| pass(&stream, offered.descriptors))
        .and_then(|()| stream.set_nonblocking(true).map_err(|error| io(&error)));
    drop(stream);
    if let_in.is_err() {
        line.close();
    }
    // Even so: it may have said goodbye.
    match line.attend(&watch, &serving.closing, |message| hear(landing, writer, message)) {
        Ending::Bye | Ending::Dead => landing.left(writer, true),
        Ending::Asked => landing.left(writer, false),
        Ending::Closed | Ending::Broken(_) => {
            // It may have everything mapped, and write: until it dies nobody else gets its blocks.
            landing.left(writer, false);
            line.close();
            if let Ok([true, _]) = ready([(watch.as_fd(), false), (serving.closing.as_fd(), false)], None) {
                landing.left(writer, true);
            }
        }
    }
    let_in
}

fn blocking(stream: &UnixStream) -> Result<(), HandshakeError> {
    stream.set_nonblocking(false).map_err(|error| io(&error))
}

fn hear(landing: &Landing, writer: Incarnation, message: Message) {
    match message {
        Message::Stopped(key) => landing.fenced(writer, key),
        Message::GivenUp(key) => given_up(landing, writer, key),
        Message::Settled(key) => landing.settle(writer, key),
        // Of no meaning from a sender; goodbyes do not come here.
        Message::Stop(_) | Message::Bye => {}
    }
}

/// A transfer that has landed whole is not given up any more, whatever its sender believes.
fn given_up(landing: &Landing, writer: Incarnation, key: TransferKey) {
    let is_its_own = landing.writing(writer, key).is_ok();
    let landed = landing.landed(key).unwrap_or_default();
    if is_its_own && !landing.is_whole(key) {
        landing.fail(key, TransferError::Stopped { key, layer: landed, peer: PeerState::Connected });
    }
    landing.fenced(writer, key);
}
