//! A service with its workers, and clients of it.

use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use splitcore_core::config::TransferRule;
use splitcore_core::event::Role;
use splitcore_daemon::Options;
use splitcore_worker::{Stats, WorkerOptions};

use crate::common::events::{Called, Events, data};
use crate::common::{Client, LIMIT, Service, bytes_model};
use crate::fleet::{Hold, MODEL, Running, options};
use crate::model::output;

/// What the services of this process log.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Writer;

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// From here on what is logged is kept.
pub(crate) fn keep_log() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let lines = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_thread_ids(true);
        tracing::subscriber::set_global_default(lines.with_writer(|| Writer).finish()).unwrap();
    });
}

/// Lines so far that have all of these.
pub(crate) fn lines(with: &[&str]) -> Vec<String> {
    let text = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    let found = text.lines().filter(|line| with.iter().all(|word| line.contains(word)));
    found.map(str::to_owned).collect()
}

pub(crate) fn managed() -> Options {
    Options {
        listen: "127.0.0.1:0".to_owned(),
        workers: "127.0.0.1:0".to_owned(),
        model: Some(bytes_model()),
        model_name: Some(MODEL.to_owned()),
        grace_s: 0.0,
        ..Options::default()
    }
}

/// With workers that count as lost at once, and KV that goes layer by layer.
pub(crate) fn fragile() -> Options {
    Options { rejoin_limit_s: 0.05, transfer: TransferRule::LayerWise, ..managed() }
}

/// Which machines a request was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) attempt: u64,
    pub(crate) prompt: String,
    pub(crate) token: Option<String>,
}

pub(crate) struct Kit {
    pub(crate) workers: Vec<Running>,
    pub(crate) service: Service,
}

/// A request whose output is as long as it may be.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) name: String,
    pub(crate) prompt: Vec<u32>,
    pub(crate) seed: u64,
    pub(crate) max_tokens: u32,
}

impl Ask {
    /// Two of one number are alike but for their names.
    pub(crate) fn new(name: &str, number: u32, max_tokens: u32) -> Self {
        let prompt: Vec<u32> = (0..40).map(|at| 8 + (at * 7 + number) % 40).collect();
        let whole = |seed: &u64| output(*seed, &prompt, max_tokens).len() == max_tokens as usize;
        let seed = (0..10_000).find(whole).expect("one output without an end");
        Self { name: name.to_owned(), prompt, seed, max_tokens }
    }

    pub(crate) fn text(&self) -> String {
        let tokens = output(self.seed, &self.prompt, self.max_tokens);
        tokens.into_iter().map(|token| char::from_u32(token).unwrap()).collect()
    }

    pub(crate) fn body(&self) -> Value {
        json!({"prompt": self.prompt, "seed": self.seed, "max_tokens": self.max_tokens, "stop_token_ids": [7], "stream": true})
    }
}

/// All texts of a stream, by choice, and how they ended.
pub(crate) fn told(events: &[String], choices: usize) -> Vec<(String, String)> {
    let mut all = vec![(String::new(), String::new()); choices];
    for choice in
        events.iter().filter_map(|event| data(event)).filter_map(|data| data["choices"].get(0).cloned())
    {
        let (text, finish) = &mut all[choice["index"].as_u64().unwrap() as usize];
        text.push_str(choice["text"].as_str().unwrap_or_default());
        finish.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    all
}

impl Kit {
    /// Two workers for prompts, p0 and p1, and two for outputs, t0 and t1.
    pub(crate) fn start(service: Options) -> Self {
        Self::with(service, (200, 200), |options| options)
    }

    /// The same, of so many blocks for prompts and for outputs.
    pub(crate) fn with(
        service: Options,
        blocks: (u32, u32),
        worker: impl Fn(WorkerOptions) -> WorkerOptions,
    ) -> Self {
        let service = Service::start(service);
        let connect = service.workers.clone().unwrap();
        let each = [("p0", Role::Prompt), ("p1", Role::Prompt), ("t0", Role::Token), ("t1", Role::Token)];
        let mut kit = Self { workers: Vec::new(), service };
        for (name, role) in each {
            let blocks = if role == Role::Token { blocks.1 } else { blocks.0 };
            kit.workers.push(Running::start(worker(options(&connect, name, role)), blocks));
            // One after the other, so that they have the places that they are written in.
            let here =
                |client: &mut Client| client.get("/v1/machines").json()["machines"].as_array().unwrap().len();
            kit.wait("a worker is here", |client| here(client) == kit.workers.len());
        }
        kit
    }

    pub(crate) fn client(&self) -> Client {
        let client = self.service.client();
        client.stream.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
        client
    }

    /// Asks until something is so.
    pub(crate) fn wait(&self, what: &str, is: impl Fn(&mut Client) -> bool) {
        let (mut client, begun) = (self.client(), Instant::now());
        while !is(&mut client) {
            assert!(begun.elapsed() < LIMIT, "{what}: not in time: {:#}", client.get("/v1/overview").json());
            std::thread::yield_now();
        }
    }

    pub(crate) fn overview(&self) -> Value {
        self.client().get("/v1/overview").json()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.overview()["counters"][name].as_u64().unwrap()
    }

    /// What has been decided of a request, the first first.
    pub(crate) fn pairs(&self, name: &str) -> Vec<Pair> {
        let overview = self.overview();
        let of = overview["decisions"].as_array().unwrap().iter().rev().filter(|each| each["name"] == name);
        let pair = |each: &Value| Pair {
            attempt: each["attempt"].as_u64().unwrap(),
            prompt: each["prompt"].as_str().unwrap().to_owned(),
            token: each["token"].as_str().map(str::to_owned),
        };
        of.map(pair).collect()
    }

    /// Where the KV of a request comes from and goes to, by its last handoff that was not given up.
    pub(crate) fn handoff(&self, name: &str) -> Option<(String, String)> {
        let text = |of: &Value| of.as_str().unwrap().to_owned();
        let overview = self.overview();
        let mut all = overview["handoffs"].as_array().unwrap().iter();
        let last = all.find(|each| each["name"] == name && each["stage"] != "failed")?;
        Some((text(&last["from"]), text(&last["to"])))
    }

    pub(crate) fn hold(&self, prefix: char, hold: Option<Hold>) {
        let of = self.workers.iter().filter(|worker| worker.name.starts_with(prefix));
        of.for_each(|worker| worker.gate.set(hold));
    }

    pub(crate) fn stands(&self, name: &str) -> bool {
        self.workers.iter().any(|worker| worker.name == name && worker.gate.stands())
    }

    /// A worker dies; none takes its place.
    pub(crate) fn kill(&mut self, name: &str) {
        let at = self.workers.iter().position(|worker| worker.name == name).unwrap();
        self.workers.remove(at).end();
    }

    /// Begins a stream; its head may be long in coming.
    pub(crate) fn call(&self, name: &str, body: &Value) -> JoinHandle<Events> {
        let (client, headers) = (self.client(), format!("x-request-id: {name}\r\n"));
        let body = body.to_string();
        std::thread::spawn(move || match Events::call(client, "POST", "/v1/completions", &headers, &body) {
            Called::Stream(events) => events,
            Called::Whole(answer) => panic!("{}", String::from_utf8_lossy(&answer.body)),
        })
    }

    /// Nothing lives, nothing is booked, and every block is free.
    pub(crate) fn idle(&self) {
        self.wait("nothing is left", |client| {
            let machines = client.get("/v1/overview").json()["machines"].clone();
            let free = |each: &Value| {
                let of = ["legs", "prompt_pending_tokens", "kv_tokens"].map(|of| each[of].as_u64().unwrap());
                of == [0; 3]
                    && each["blocks"]["free"] == each["blocks"]["total"]
                    && each["blocks"]["quarantined"] == 0
            };
            client.check() == 0 && machines.as_array().unwrap().iter().all(free)
        });
    }

    pub(crate) fn end(self) -> Vec<Stats> {
        self.workers.into_iter().map(Running::end).collect()
    }
}
