//! One connection of a client, from its first byte to its last.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use crate::http::{self, App};
use crate::timed::Timed;

/// What a head may need; more is refused. Of a body, and of an answer that comes in pieces, not much more than this is
/// held for one connection either.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// How clients are spoken with that have so long for a head.
fn builder(limit: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limit)
        .max_header_size(BUFFER_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .half_close(false);
    builder
}

/// Connections beyond `connections_max` that are there at once.
pub(crate) const BEYOND_MAX: usize = 256;
/// What is left to them until their only head is whole.
const BEYOND_LIMIT: Duration = Duration::from_secs(1);

/// The connections beyond `connections_max`. Each may ask for health, once; all else is told that there is no room.
/// Where there are too many, the oldest goes: who asks for health does so at once.
#[derive(Default)]
pub(crate) struct Beyond(VecDeque<AbortHandle>);

impl Beyond {
    pub(crate) fn push(&mut self, newest: AbortHandle) {
        if self.0.len() == BEYOND_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(newest);
    }
}

/// One connection and what it needs.
#[derive(Clone)]
pub(crate) struct Connection {
    app: Arc<App>,
    router: Router,
    builder: http1::Builder,
    closing: watch::Receiver<bool>,
    /// What is left to a session of TLS to be made.
    limit: Duration,
    /// There is no room for it.
    is_beyond: bool,
}

impl Connection {
    /// One within `connections_max`. It ends once `closing` says so.
    pub(crate) fn new(app: &Arc<App>, closing: watch::Receiver<bool>) -> Self {
        let limit = Duration::from_secs_f64(app.options.header_timeout_s);
        let (app, router) = (Arc::clone(app), http::router(app));
        Self { app, router, builder: builder(limit), closing, limit, is_beyond: false }
    }

    /// One beyond it.
    pub(crate) fn beyond(&self) -> Self {
        let limit = self.limit.min(BEYOND_LIMIT);
        let mut builder = builder(limit);
        builder.keep_alive(false);
        Self { builder, limit, is_beyond: true, ..self.clone() }
    }

    /// Answers until either side ends it.
    pub(crate) async fn serve(self, tls: Option<TlsAcceptor>, stream: TcpStream) {
        let Some(tls) = tls else { return self.answer(stream).await };
        match tokio::time::timeout(self.limit, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.answer(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "no TLS session"),
            Err(_) => tracing::debug!("header_timeout_s: no TLS session in time"),
        }
    }

    async fn answer(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let Self { app, router, builder, mut closing, is_beyond, .. } = self;
        let stream = Timed::new(stream, Duration::from_secs_f64(app.options.write_timeout_s));
        let taken = stream.taken();
        let service = service_fn(|request| {
            let (app, router, taken) = (Arc::clone(&app), router.clone(), Arc::clone(&taken));
            async move {
                // Who asks on without reading has one answer waiting, not all.
                taken.all().await;
                let refused = is_beyond.then(|| http::refuse_beyond(&request)).flatten();
                Ok::<_, Infallible>(match refused {
                    Some(refused) => refused,
                    None => http::serve(app, router, request).await,
                })
            }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let close = async { drop(closing.wait_for(|&closing| closing).await) };
        let done = tokio::select! {
            done = connection.as_mut() => done,
            () = close => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = done {
            if error.is_timeout() {
                tracing::debug!("header_timeout_s: no whole head came in time");
            } else {
                tracing::debug!(%error, "a connection ended");
            }
        }
    }
}
