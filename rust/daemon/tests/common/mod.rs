//! A service on a thread, and a client that sends whatever a test wants.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod events;
pub(crate) mod tiny_model;
pub(crate) mod worker;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use splitcore_daemon::{Options, Server};
use tokio::sync::oneshot;

/// Longest wait of any test for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A running service; dropped, it stops.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    /// Where its workers connect.
    pub(crate) workers: Option<String>,
    stop: Option<oneshot::Sender<()>>,
    cut: Option<oneshot::Sender<()>>,
    dies: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn options() -> Options {
    Options { listen: "127.0.0.1:0".to_owned(), ..Options::default() }
}

/// The folder of a model that is nothing but a tokenizer: one token for each byte.
pub(crate) fn bytes_model() -> PathBuf {
    static ONCE: LazyLock<PathBuf> = LazyLock::new(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bytes-model");
        tiny_model::of_bytes(&directory);
        directory
    });
    ONCE.clone()
}

/// Waits until a daemon that starts has another epoch than the last: the next tenth of a second.
pub(crate) fn next_life() {
    let before = splitcore_daemon::host::life();
    while splitcore_daemon::host::life() == before {
        std::thread::yield_now();
    }
}

async fn given(signal: oneshot::Receiver<()>) {
    let _ = signal.await;
}

impl Service {
    pub(crate) fn start(options: Options) -> Self {
        let (started, address) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let (cut, is_cut) = oneshot::channel();
        let (dies, is_dead) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::bind(options).await.unwrap();
                let workers = server.workers().map(ToString::to_string);
                started.send((server.address().unwrap(), workers)).unwrap();
                tokio::select! {
                    () = server.serve(given(stopped), given(is_cut)) => {}
                    () = given(is_dead) => {}
                }
            });
        });
        let (address, workers) = address.recv_timeout(LIMIT).expect("the service starts");
        Self { address, workers, stop: Some(stop), cut: Some(cut), dies: Some(dies), thread: Some(thread) }
    }

    /// With machines p0.., t0.. of 1000 blocks of 16 tokens.
    pub(crate) fn with_machines(options: Options, prompt: usize, token: usize) -> Self {
        let service = Self::start(options);
        let names = (0..prompt).map(|at| ("prompt", format!("p{at}")));
        let names = names.chain((0..token).map(|at| ("token", format!("t{at}"))));
        let machines: Vec<Value> = names.map(|(role, name)| machine(&name, role)).collect();
        assert_eq!(service.client().post("/v1/machines", &json!(machines)).status, 201);
        service
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// As SIGTERM.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// As `kill -9`: from here on it says nothing to anybody.
    pub(crate) fn kill(&mut self) {
        drop(self.dies.take());
        self.join();
    }

    /// Waits until it has ended by itself.
    pub(crate) fn join(&mut self) {
        self.thread.take().expect("joined once").join().expect("no panic");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop();
        drop(self.cut.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the service panicked");
        }
    }
}

pub(crate) fn machine(name: &str, role: &str) -> Value {
    json!({"name": name, "url": format!("http://{name}.test:8000"), "role": role, "kv_blocks": 1000})
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (given, value) = line.split_once(':')?;
            given.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The code of an error, whose shape is checked.
    pub(crate) fn code(&self) -> String {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("no error: {body}"));
        let mut keys: Vec<&str> = error.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["code", "message", "param", "type"]);
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        error["code"].as_str().unwrap().to_owned()
    }

    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }
}

/// One kept connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) token: Option<String>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, LIMIT).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, token: None }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next answer; `None` where the connection ends without one.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        let mut bytes = Vec::new();
        let head = loop {
            if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break at;
            }
            let mut chunk = [0; 4096];
            // Nothing of the answer after this one may be taken: look first, then take up to the end of the head.
            let seen = self.stream.peek(&mut chunk).ok().filter(|&seen| seen > 0)?;
            bytes.extend_from_slice(&chunk[..seen]);
            let end =
                bytes.windows(4).position(|window| window == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
            let take = seen - (bytes.len() - end);
            bytes.truncate(end);
            self.stream.read_exact(&mut chunk[..take]).ok()?;
        };
        bytes.truncate(head + 4);
        let head = String::from_utf8(bytes).unwrap();
        let status = head[9..12].parse().unwrap();
        let answer = Answer { status, head, body: Vec::new() };
        if answer.header("transfer-encoding") == Some("chunked") {
            let mut body = Vec::new();
            loop {
                let chunk = self.chunk()?;
                if chunk.is_empty() {
                    break;
                }
                body.extend(chunk);
            }
            return Some(Answer { body, ..answer });
        }
        let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        Some(Answer { body, ..answer })
    }

    /// One chunk of a body; the last is empty. `None` where the connection ends before.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).ok()?;
            line.push(byte[0]);
        }
        let length = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        let mut chunk = vec![0; length + 2];
        self.stream.read_exact(&mut chunk).ok()?;
        chunk.truncate(length);
        Some(chunk)
    }

    pub(crate) fn call(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{token}{headers}content-length: {length}\r\n\r\n"
        );
        self.send(&[head.as_bytes(), body].concat()).unwrap();
        self.answer().expect("an answer")
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.call("GET", path, "", b"")
    }

    pub(crate) fn delete(&mut self, path: &str) -> Answer {
        self.call("DELETE", path, "", b"")
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string())
    }

    pub(crate) fn post_text(&mut self, path: &str, body: &str) -> Answer {
        self.call("POST", path, "content-type: application/json\r\n", body.as_bytes())
    }

    pub(crate) fn place(&mut self, id: u64) -> Answer {
        self.post("/v1/placements", &json!({"request_id": id, "prompt_tokens": 100, "max_new_tokens": 10}))
    }

    /// Waits for the events after a number, at most `LIMIT`.
    pub(crate) fn events(&mut self, since: u64) -> Vec<Value> {
        let answer = self.get(&format!("/v1/events?since={since}&wait_s=15"));
        assert_eq!(answer.status, 200);
        answer.json()["events"].as_array().unwrap().clone()
    }

    /// Recounts, and returns how many requests live.
    pub(crate) fn check(&mut self) -> u64 {
        let answer = self.get("/v1/check");
        let body = answer.json();
        assert_eq!((answer.status, &body["ok"]), (200, &Value::Bool(true)), "{body}");
        body["live"].as_u64().unwrap()
    }
}
