//! Connections, signals, and how it all ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use splitcore_wire::address::{Address, AddressError};
use splitcore_wire::auth::Secret;
use splitcore_wire::listen::Listener;
use splitcore_wire::session::Settings;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::connection::{BEYOND_MAX, Beyond, Connection};
use crate::doors;
use crate::http::{App, Gate};
use crate::openai::Gateway;
use crate::options::{OptionError, Options};
use crate::tls::{self, Tls};

/// Bytes of answers that the system holds for one connection.
const SEND_BYTES: usize = 256 << 10;
/// What is left to connections once the service has drained.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
/// What workers have said and the host has yet to take.
const HEARD_MAX: usize = 1024;
/// How often a draining service looks whether anything is left.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
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
        // Those it takes have the same.
        rustix::net::sockopt::set_socket_send_buffer_size(&listener, SEND_BYTES)
            .map_err(std::io::Error::from)?;
        let address = listener.local_addr()?;
        check_files(options.connections_max);
        let wire = secret.as_deref().map(Secret::new);
        let gate = Gate::new(secret.clone(), &options.listen, address);
        let app = Arc::new(App::new(options, gate)?);
        let workers = if app.options.model.is_some() {
            Some(bind_workers(&app, wire, tls.as_ref()).await?)
        } else {
            None
        };
        let workers_at = workers.as_ref().map(|(listener, _)| listener.address());
        for door in doors::open(&app.options, secret.as_deref(), address, workers_at) {
            tracing::warn!("{door}");
        }
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
        let within = Connection::new(&self.app, closing);
        let slots = Arc::new(Semaphore::new(self.app.options.connections_max));
        let mut beyond = Beyond::default();
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
            let tls = self.tls.clone();
            let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                self.app.metrics.refused();
                beyond.push(tokio::spawn(within.beyond().serve(tls, stream)).abort_handle());
                continue;
            };
            let (app, connection) = (Arc::clone(&self.app), within.clone());
            tokio::spawn(async move {
                app.metrics.connected();
                connection.serve(tls, stream).await;
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
    let context = app.gateway.as_ref().map_or(0, Gateway::context);
    let epoch = app.host.epoch().map_err(|fault| std::io::Error::other(fault.to_string()))?;
    let settings = Settings { secret, model: options.model_name(), context, epoch, ..Settings::default() };
    Ok((listener, settings))
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

/// Warns where the system allows fewer open files than connections.
fn check_files(connections_max: usize) {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if allowed.is_some_and(|allowed| allowed < (connections_max + BEYOND_MAX + 64) as u64) {
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
