//! A service with a model of one token for each byte, and a worker whose output follows from the prompt.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex};

use serde_json::{Value, json};
use splitcore_daemon::Options;
use splitcore_wire::message::Descriptor;

use crate::common::events::{Called, Events, data};
use crate::common::tiny_model::END;
use crate::common::worker::Worker;
use crate::common::{Answer, Client, LIMIT, Service, bytes_model, next_life, options};

/// Names of requests whose gate is open.
static OPEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
static OPENED: Condvar = Condvar::new();

/// Lets a request go on behind its gate.
pub(crate) fn open(name: &str) {
    OPEN.lock().unwrap().get_or_insert_default().insert(name.to_owned());
    OPENED.notify_all();
}

/// Behind `#` letters drawn by the seed, without end; else what the prompt has before its first line's end, and the end.
/// A `|` there is a gate: what is behind it waits until it is opened.
fn model(descriptor: &Descriptor, index: u32) -> u32 {
    let (prompt, seed, at) = (&descriptor.prompt, descriptor.sampling.seed, index as usize);
    if prompt[0] == u32::from(b'#') {
        let drawn = (seed ^ u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        return u32::from(b'a') + (drawn % 26) as u32;
    }
    let line = prompt.iter().position(|&id| id == u32::from(b'\n')).unwrap_or(prompt.len());
    if prompt[..line].iter().take(at).any(|&id| id == u32::from(b'|')) {
        let open = OPEN.lock().unwrap();
        let closed = |open: &mut Option<HashSet<String>>| {
            !open.as_ref().is_some_and(|open| open.contains(&descriptor.name))
        };
        let (_open, waited) = OPENED.wait_timeout_while(open, LIMIT, closed).unwrap();
        assert!(!waited.timed_out(), "the gate of {} stays closed", descriptor.name);
    }
    if at < line { prompt[at] } else { END }
}

pub(crate) struct Kit {
    pub(crate) worker: Option<Worker>,
    pub(crate) service: Service,
}

pub(crate) fn managed() -> Options {
    Options {
        model: Some(bytes_model()),
        model_name: Some("org/tiny".to_owned()),
        workers: "127.0.0.1:0".to_owned(),
        grace_s: 0.0,
        ..options()
    }
}

impl Kit {
    pub(crate) fn start() -> Self {
        Self::with(managed())
    }

    pub(crate) fn with(options: Options) -> Self {
        let service = Service::start(options);
        let workers = service.workers.clone().unwrap();
        let kit = Self { worker: Some(Worker::start(&workers, "w", "org/tiny", model)), service };
        kit.ready();
        kit
    }

    /// The service is killed, and another one takes its place. Its workers live on.
    pub(crate) fn restart(&mut self) {
        let workers = self.service.workers.clone().unwrap();
        self.service.kill();
        next_life();
        self.service = Service::start(Options { workers, grace_s: 1.0, ..managed() });
    }

    /// Comes back to a request, as often as the service says that it is too early.
    pub(crate) fn come_back(&self, name: &str, last: Option<&str>) -> Called {
        let begun = std::time::Instant::now();
        loop {
            match self.attach(name, last) {
                Called::Whole(answer) if answer.status == 503 => {
                    assert!(begun.elapsed() < LIMIT, "{}", answer.message());
                    assert_eq!(
                        (answer.code().as_str(), answer.header("retry-after")),
                        ("recovering", Some("1"))
                    );
                }
                called => return called,
            }
        }
    }

    pub(crate) fn ready(&self) {
        self.wait("it is ready", |client| client.get("/readyz").status == 200);
    }

    pub(crate) fn client(&self) -> Client {
        self.service.client()
    }

    /// Asks until something is so.
    pub(crate) fn wait(&self, what: &str, is: impl Fn(&mut Client) -> bool) {
        let (mut client, begun) = (self.client(), std::time::Instant::now());
        while !is(&mut client) {
            assert!(begun.elapsed() < LIMIT, "{what}: not in time");
            std::thread::yield_now();
        }
    }

    pub(crate) fn idle(&self) {
        self.wait("nothing lives", |client| client.check() == 0);
    }

    pub(crate) fn complete(&self, body: &Value) -> Answer {
        self.client().post("/v1/completions", body)
    }

    pub(crate) fn chat(&self, body: &Value) -> Answer {
        self.client().post("/v1/chat/completions", body)
    }

    pub(crate) fn stream(&self, path: &str, headers: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = json!(true);
        match Events::call(self.client(), "POST", path, headers, &body.to_string()) {
            Called::Stream(events) => events,
            Called::Whole(answer) => panic!("{}", String::from_utf8_lossy(&answer.body)),
        }
    }

    pub(crate) fn attach(&self, name: &str, last: Option<&str>) -> Called {
        let headers = last.map_or_else(String::new, |last| format!("last-event-id: {last}\r\n"));
        Events::call(self.client(), "GET", &format!("/v1/requests/{name}"), &headers, "")
    }

    /// The value of a line of metrics.
    pub(crate) fn metric(client: &mut Client, name: &str) -> f64 {
        let text = String::from_utf8(client.get("/metrics").body).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    pub(crate) fn ends(&self, finish_reason: &str) -> f64 {
        Self::metric(
            &mut self.client(),
            &format!("splitcore_requests_total{{finish_reason=\"{finish_reason}\"}}"),
        )
    }
}

/// The texts of a whole answer's choices, and how they ended.
pub(crate) fn texts(answer: &Answer) -> Vec<(String, String)> {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let body = answer.json();
    let choices = body["choices"].as_array().unwrap().iter().enumerate().map(|(at, choice)| {
        assert_eq!(choice["index"], json!(at));
        let text = choice["text"].as_str().or_else(|| choice["message"]["content"].as_str()).unwrap();
        (text.to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
    });
    choices.collect()
}

/// The same of a stream's events.
pub(crate) fn told(events: &[String], choices: usize) -> Vec<(String, String)> {
    let mut all = vec![(String::new(), String::new()); choices];
    for choice in
        events.iter().filter_map(|event| data(event)).filter_map(|data| data["choices"].get(0).cloned())
    {
        let (text, finish) = &mut all[choice["index"].as_u64().unwrap() as usize];
        let new = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
        text.push_str(new.unwrap_or_default());
        finish.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    all
}

pub(crate) fn pair(text: &str, finish: &str) -> (String, String) {
    (text.to_owned(), finish.to_owned())
}
