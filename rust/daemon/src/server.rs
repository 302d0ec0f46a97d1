//! Connections, signals, and how it all ends.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use splitcore_wire::address::{Address, AddressError};
use splitcore_wire::auth::Secret;
use splitcore_wire::listen::Listener;
use splitcore_wire::session::Settings;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::http::{self, App};
use crate::options::{OptionError, Options};
use crate::timed::Timed;
use crate::tls::{self, Tls};

/// What a head may need; more is refused.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// What is left to connections once the service has drained.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
/// What workers have said and the host has yet to take.
const HEARD_MAX: usize = 1024;
/// How often a draining service looks whether anything is left.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// What connections beyond the bound are told.
const FULL: &str = r#"{"error":{"message":"connections_max: no more connections are taken at once","type":"server_error","param":null,"code":"connections_max"}}"#;

/// Why the service did not start, or stopped early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An option outside its range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The address cannot be listened on.
    #[error("listen: {address}: {error}")]
    Listen {
        /// What was asked for.
        address: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The system refuses something else.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Which signal ended the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
}

/// SIGTERM and SIGINT as they come.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
        }
    }
}

/// A service that listens and does not answer yet.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    workers: Option<(Listener, Settings)>,
}

/// Logs to standard error, one line each. The first caller of a process decides how much.
///
/// # Errors
/// A level that is none.
pub fn start_log(level: &str) -> Result<(), OptionError> {
    let level: tracing_subscriber::filter::LevelFilter = level
        .parse()
        .map_err(|_| OptionError::new("log_level", "off, error, warn, info, debug or trace", level))?;
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .finish();
    // There is one already where the embedding process has made it, which is as good.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

/// Serves until SIGTERM or SIGINT, on this thread.
///
/// # Errors
/// What keeps it from starting.
pub fn run(options: Options) -> Result<Stop, ServeError> {
    start_log(&options.log_level)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = Server::bind(options).await?;
        let mut signals = Signals::new()?;
        let mut again = Signals::new()?;
        let mut first = Stop::Terminate;
        let stop = async {
            first = signals.next().await;
            tracing::info!("draining; a second signal ends it at once");
        };
        let cut = async {
            // It has had the first signal as well.
            again.next().await;
            again.next().await;
        };
        server.serve(stop, cut).await;
        Ok(first)
    })
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// An option outside its range, or an address that is not free.
    pub async fn bind(options: Options) -> Result<Self, ServeError> {
        options.validate()?;
        let secret = options.secret_file.as_deref().map(read_secret).transpose()?;
        let tls = match (&options.tls_cert, &options.tls_key) {
            (Some(cert), Some(key)) => Some(tls::read(cert, key)?),
            _ => None,
        };
        let listen = |error| ServeError::Listen { address: options.listen.clone(), error };
        let listener = TcpListener::bind(&options.listen).await.map_err(listen)?;
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() && secret.is_none() {
            tracing::warn!(%address, "whoever reaches this address can place: there is no secret_file");
        }
        check_files(options.connections_max);
        let wire = secret.as_deref().map(Secret::new);
        let app = Arc::new(App::new(options, secret)?);
        let workers = if app.options.model.is_some() {
            Some(bind_workers(&app, wire, tls.as_ref()).await?)
        } else {
            None
        };
        Ok(Self { app, listener, tls: tls.as_ref().map(Tls::http), workers })
    }

    /// Where workers connect, if it has any.
    pub fn workers(&self) -> Option<&Address> {
        self.workers.as_ref().map(|(listener, _)| listener.address())
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What its connections share.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Answers until `stop` is done, then drains; `cut` ends that at once.
    pub async fn serve(mut self, stop: impl Future<Output = ()>, cut: impl Future<Output = ()>) {
        let (close, closing) = watch::channel(false);
        let app = Arc::clone(&self.app);
        let workers = self.workers.take().map(|(listener, settings)| {
            let with = if listener.is_tls() { " with TLS" } else { "" };
            tracing::info!("workers connect to {}{with}", listener.address());
            tokio::spawn(hear_workers(Arc::clone(&app), listener, settings))
        });
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        if let Ok(address) = self.address() {
            tracing::info!("listening on {scheme}://{address}");
        }
        let ticker = tokio::spawn({
            let app = Arc::clone(&app);
            async move { app.host.tick().await }
        });
        let ending = async {
            stop.await;
            app.drain();
            drain(&app, cut).await;
        };
        tokio::select! {
            () = self.accept(closing) => {}
            () = ending => {}
        }
        close.send_replace(true);
        // Each connection holds a receiver until it is gone.
        let gone = tokio::time::timeout(CLOSE_LIMIT, close.closed()).await.is_ok();
        ticker.abort();
        if let Some(workers) = workers {
            workers.abort();
        }
        tracing::info!(connections_cut = !gone, "stopped");
    }

    async fn accept(self, closing: watch::Receiver<bool>) {
        let router = http::router(&self.app);
        let slots = Arc::new(Semaphore::new(self.app.options.connections_max));
        let builder = builder(&self.app.options);
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // No file descriptor is left, say: those who leave give theirs back.
                    tracing::warn!(%error, "a connection was not taken");
                    tokio::time::sleep(DRAIN_LOOK).await;
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                self.app.metrics.refused();
                refuse(stream);
                continue;
            };
            let connection = Connection {
                app: Arc::clone(&self.app),
                router: router.clone(),
                builder: builder.clone(),
                closing: closing.clone(),
            };
            let tls = self.tls.clone();
            tokio::spawn(async move {
                connection.app.metrics.connected();
                let app = Arc::clone(&connection.app);
                match tls {
                    None => connection.answer(stream).await,
                    Some(tls) => connection.answer_tls(&tls, stream).await,
                }
                app.metrics.disconnected();
                drop(slot);
            });
        }
    }
}

/// Listens where workers connect.
async fn bind_workers(
    app: &App,
    secret: Option<Secret>,
    tls: Option<&Tls>,
) -> Result<(Listener, Settings), ServeError> {
    let options = &app.options;
    let wrong = |error: AddressError| OptionError::new("workers", "host:port or unix:/path", error);
    let address: Address = options.workers.parse().map_err(wrong)?;
    let listen = |error| ServeError::Listen { address: options.workers.clone(), error };
    let mut listener = Listener::bind(&address).await.map_err(listen)?;
    if let Some(tls) = tls {
        listener = listener.with_tls(tls.workers());
    }
    let epoch = app.host.epoch().map_err(|fault| std::io::Error::other(fault.to_string()))?;
    Ok((listener, Settings { secret, model: options.model_name(), epoch, ..Settings::default() }))
}

/// Hands on what workers say, until the host has stopped.
async fn hear_workers(app: Arc<App>, listener: Listener, settings: Settings) {
    let (sender, mut heard) = mpsc::channel(HEARD_MAX);
    let serving = tokio::spawn(listener.serve(settings, sender));
    while let Some(heard) = heard.recv().await {
        if app.host.hear(heard).is_err() {
            break;
        }
    }
    serving.abort();
}

/// Waits until nothing lives, at most `drain_s`, or until `cut` is done.
async fn drain(app: &App, cut: impl Future<Output = ()>) {
    let limit = Duration::from_secs_f64(app.options.drain_s);
    let empty = async {
        while app.host.counters().is_ok_and(|(live, _, _)| live > 0) {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    tokio::select! {
        () = empty => {}
        () = cut => tracing::info!("ended at once"),
        () = tokio::time::sleep(limit) => {
            let live = app.host.counters().map_or(0, |(live, _, _)| live);
            tracing::warn!(live, drain_s = app.options.drain_s, "placements are left behind");
        }
    }
}

fn builder(options: &Options) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs_f64(options.header_timeout_s))
        .max_header_size(HEADER_BYTES_MAX)
        .pipeline_flush(true)
        .half_close(false);
    builder
}

/// One connection and what it needs.
struct Connection {
    app: Arc<App>,
    router: Router,
    builder: http1::Builder,
    closing: watch::Receiver<bool>,
}

impl Connection {
    async fn answer_tls(self, tls: &TlsAcceptor, stream: TcpStream) {
        let limit = Duration::from_secs_f64(self.app.options.header_timeout_s);
        match tokio::time::timeout(limit, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.answer(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "no TLS session"),
            Err(_) => tracing::debug!("header_timeout_s: no TLS session in time"),
        }
    }

    async fn answer(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let Self { app, router, builder, mut closing } = self;
        let service = service_fn(|request| {
            let answer = http::serve(Arc::clone(&app), router.clone(), request);
            async { Ok::<_, Infallible>(answer.await) }
        });
        let stream = Timed::new(stream, Duration::from_secs_f64(app.options.write_timeout_s));
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

/// Tells a connection beyond the bound that there is no room.
fn refuse(mut stream: TcpStream) {
    tokio::spawn(async move {
        let length = FULL.len();
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{FULL}"
        );
        let told = async {
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), told).await;
    });
}

/// Warns where the system allows fewer open files than connections.
fn check_files(connections_max: usize) {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if allowed.is_some_and(|allowed| allowed < connections_max as u64 + 64) {
        tracing::warn!(
            connections_max,
            open_files = allowed,
            "the limit on open files is below connections_max"
        );
    }
}

fn read_secret(path: &std::path::Path) -> Result<Vec<u8>, OptionError> {
    let wrong = |got: String| OptionError::new("secret_file", "a file with a secret", got);
    let text = std::fs::read(path).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    let secret = text.trim_ascii();
    if secret.is_empty() { Err(wrong(format!("{}: empty", path.display()))) } else { Ok(secret.to_vec()) }
}
