//! A load generator for the placement service: place + delete pairs over kept connections, one call at a time on
//! each. Anything but 2xx is a failure. Prints one line of JSON.
//!
//! `load ADDRESS [--connections N] [--machines N] [--seconds S] [--prompt-tokens N]`
//!
//! `--api dynamo` speaks to Dynamo's selection service instead: select-and-reserve + free, with the hashes of as many
//! blocks of 16 tokens, different for each request. `--api completions` sends completions to a router.
//!
//! With `--reports N` it sends no placements: each machine reports once a second, N of them in one call. `--known N`
//! says how many there are where they have joined before.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One kept connection.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// The status and the body of an answer.
struct Answer<'a> {
    status: u16,
    body: &'a [u8],
}

fn wrong(what: impl Into<String>) -> std::io::Error {
    std::io::Error::other(what.into())
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The whole number after a mark.
fn number_after(bytes: &[u8], mark: &[u8]) -> Option<u64> {
    let rest = &bytes[find(bytes, mark)? + mark.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

impl Client {
    async fn connect(address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(1 << 16) })
    }

    async fn call(&mut self, request: &[u8]) -> std::io::Result<Answer<'_>> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let mut whole = None;
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(wrong("the connection was closed"));
            }
            if whole.is_none() {
                whole = find(&self.buffer, b"\r\n\r\n").map(|head| {
                    let length = number_after(&self.buffer[..head], b"content-length: ").unwrap_or(0);
                    (head + 4, head + 4 + length as usize)
                });
            }
            let Some((head, end)) = whole else { continue };
            if self.buffer.len() >= end {
                let status = std::str::from_utf8(&self.buffer[9..12]).ok().and_then(|text| text.parse().ok());
                let status = status.ok_or_else(|| wrong("no status"))?;
                return Ok(Answer { status, body: &self.buffer[head..end] });
            }
        }
    }

    async fn post(&mut self, path: &str, body: &str) -> std::io::Result<Answer<'_>> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.call(request.as_bytes()).await
    }
}

/// What one connection, or all of them, came to.
struct Tally {
    pairs: u64,
    failures: u64,
    place: Histogram<u64>,
    pair: Histogram<u64>,
}

impl Tally {
    fn new() -> Self {
        let empty = || Histogram::new_with_max(60_000_000_000, 3).expect("valid bounds");
        Self { pairs: 0, failures: 0, place: empty(), pair: empty() }
    }
}

/// Whose calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    Splitcore,
    Dynamo,
    /// One call to a router of completions; nothing is ended.
    Completions,
}

impl Api {
    fn place_path(self) -> &'static str {
        match self {
            Self::Splitcore => "/v1/placements",
            Self::Dynamo => "/select_and_reserve",
            Self::Completions => "/v1/completions",
        }
    }

    /// The body of request number `number` of connection `connection`.
    fn place(self, prompt_tokens: u32, connection: usize, number: u64) -> String {
        if self == Self::Splitcore {
            return format!("{{\"prompt_tokens\":{prompt_tokens},\"max_new_tokens\":128}}");
        }
        if self == Self::Completions {
            let prompt = "word ".repeat(prompt_tokens as usize);
            return format!("{{\"model\":\"m\",\"prompt\":\"{prompt}\",\"max_tokens\":128}}");
        }
        let first = ((connection as u64) << 40) + number * 1024;
        let hashes: Vec<String> =
            (0..u64::from(prompt_tokens).div_ceil(16)).map(|block| (first + block).to_string()).collect();
        let hashes = hashes.join(",");
        format!(
            "{{\"selection_id\":\"{connection}-{number}\",\"block_hashes\":[{hashes}],\"sequence_hashes\":[{hashes}],\
             \"isl_tokens\":{prompt_tokens}}}"
        )
    }

    /// What ends the placement that was answered so.
    fn end(self, placed: &[u8], connection: usize, number: u64) -> Option<String> {
        let path = match self {
            Self::Completions => return Some(String::new()),
            Self::Splitcore => format!("/v1/placements/{}", number_after(placed, b"\"request_id\":")?),
            Self::Dynamo => format!("/reservations/{connection}-{number}"),
        };
        Some(format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
    }

    fn has_ended(self, answer: &Answer<'_>) -> bool {
        answer.status / 100 == 2 && (self != Self::Splitcore || answer.body == b"{\"applied\":true}")
    }
}

async fn pairs(
    api: Api,
    address: String,
    until: Instant,
    prompt_tokens: u32,
    connection: usize,
) -> std::io::Result<Tally> {
    let mut client = Client::connect(&address).await?;
    let mut tally = Tally::new();
    for number in 0.. {
        if Instant::now() >= until {
            break;
        }
        let body = api.place(prompt_tokens, connection, number);
        let begun = Instant::now();
        let answer = client.post(api.place_path(), &body).await?;
        let placed = begun.elapsed();
        let end = api.end(answer.body, connection, number).filter(|_| answer.status / 100 == 2);
        let Some(request) = end else {
            tally.failures += 1;
            continue;
        };
        if !request.is_empty() {
            let answer = client.call(request.as_bytes()).await?;
            if !api.has_ended(&answer) {
                tally.failures += 1;
                continue;
            }
        }
        tally.pairs += 1;
        tally.place.saturating_record(placed.as_nanos() as u64);
        tally.pair.saturating_record(begun.elapsed().as_nanos() as u64);
    }
    Ok(tally)
}

/// Registers machines, in one call where there is one for many; returns how long it took.
async fn register(api: Api, address: &str, machines: usize) -> std::io::Result<Duration> {
    if api != Api::Splitcore {
        return register_each(address, machines).await;
    }
    let one = |at: usize| {
        let role = if at.is_multiple_of(2) { "prompt" } else { "token" };
        format!(
            "{{\"name\":\"m{at}\",\"url\":\"http://10.0.0.1:{at}\",\"role\":\"{role}\",\"kv_blocks\":40000}}"
        )
    };
    let body = format!("[{}]", (0..machines).map(one).collect::<Vec<_>>().join(","));
    let mut client = Client::connect(address).await?;
    let begun = Instant::now();
    let answer = client.post("/v1/machines", &body).await?;
    if answer.status != 201 {
        return Err(wrong(format!("machines: {}", String::from_utf8_lossy(answer.body))));
    }
    Ok(begun.elapsed())
}

async fn register_each(address: &str, machines: usize) -> std::io::Result<Duration> {
    let mut client = Client::connect(address).await?;
    let begun = Instant::now();
    for at in 0..machines {
        let body = format!(
            "{{\"worker_id\":{at},\"endpoint\":\"http://10.0.0.1:{at}\",\"block_size\":16,\
             \"max_num_batched_tokens\":8192,\"total_kv_blocks\":40000}}"
        );
        let answer = client.post("/workers", &body).await?;
        if answer.status != 201 {
            return Err(wrong(format!("workers: {}", String::from_utf8_lossy(answer.body))));
        }
    }
    Ok(begun.elapsed())
}

/// Reports of all machines, spread over each second, a share of them in one call.
async fn reports(address: &str, machines: usize, share: usize, seconds: usize) -> std::io::Result<Tally> {
    let mut client = Client::connect(address).await?;
    let mut tally = Tally::new();
    let calls = machines.div_ceil(share);
    let between = Duration::from_secs(1) / calls as u32;
    let mut due = tokio::time::interval(between);
    for turn in 0..calls * seconds {
        due.tick().await;
        let first = turn % calls * share;
        let one = |at| format!("{{\"machine\":\"m{at}\",\"kv_tokens\":{}}}", (at + turn) % 5000);
        let all = (first..machines.min(first + share)).map(one).collect::<Vec<_>>().join(",");
        let begun = Instant::now();
        let answer = client.post("/v1/reports", &format!("{{\"reports\":[{all}]}}")).await?;
        tally.failures += u64::from(answer.status != 200 || find(answer.body, b"\"unknown\":[]").is_none());
        tally.pairs += 1;
        tally.place.saturating_record(begun.elapsed().as_nanos() as u64);
    }
    Ok(tally)
}

fn option(arguments: &[String], name: &str, default: usize) -> usize {
    let at = arguments.iter().position(|argument| argument == name);
    at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
}

#[allow(clippy::print_stdout, reason = "its one line of output")]
async fn run(arguments: &[String]) -> std::io::Result<bool> {
    let address = arguments.first().ok_or_else(|| wrong("usage: load ADDRESS [--connections N] ..."))?;
    let connections = option(arguments, "--connections", 16);
    let machines = option(arguments, "--machines", 0);
    let seconds = option(arguments, "--seconds", 3);
    let prompt_tokens = option(arguments, "--prompt-tokens", 512) as u32;
    let named = arguments.iter().position(|argument| argument == "--api").map(|at| arguments.get(at + 1));
    let api = match named.map(|name| name.map_or("", String::as_str)) {
        None => Api::Splitcore,
        Some("dynamo") => Api::Dynamo,
        Some("completions") => Api::Completions,
        Some(other) => return Err(wrong(format!("--api: expected dynamo or completions, got '{other}'"))),
    };
    let registered = if machines > 0 { register(api, address, machines).await? } else { Duration::ZERO };
    let begun = Instant::now();
    let until = begun + Duration::from_secs(seconds as u64);
    let share = option(arguments, "--reports", 0);
    if share > 0 {
        let all = reports(address, option(arguments, "--known", machines), share, seconds).await?;
        let p99_us = all.place.value_at_quantile(0.99) / 1000;
        println!("{{\"calls\":{},\"failures\":{},\"p99_us\":{p99_us}}}", all.pairs, all.failures);
        return Ok(all.failures == 0);
    }
    let one = |connection| tokio::spawn(pairs(api, address.clone(), until, prompt_tokens, connection));
    let tasks: Vec<_> = (0..connections).map(one).collect();
    let mut all = Tally::new();
    for task in tasks {
        let one = task.await.map_err(|error| wrong(error.to_string()))??;
        all.pairs += one.pairs;
        all.failures += one.failures;
        all.place.add(one.place).map_err(|error| wrong(error.to_string()))?;
        all.pair.add(one.pair).map_err(|error| wrong(error.to_string()))?;
    }
    let rate = all.pairs as f64 / begun.elapsed().as_secs_f64();
    let us = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) / 1000;
    println!(
        "{{\"connections\":{connections},\"machines\":{machines},\"pairs\":{},\"failures\":{},\"pairs_per_s\":{rate:.0},\
         \"place_p50_us\":{},\"place_p99_us\":{},\"pair_p50_us\":{},\"pair_p99_us\":{},\"register_s\":{:.4}}}",
        all.pairs,
        all.failures,
        us(&all.place, 0.5),
        us(&all.place, 0.99),
        us(&all.pair, 0.5),
        us(&all.pair, 0.99),
        registered.as_secs_f64(),
    );
    Ok(all.failures == 0 && all.pairs > 0)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    match runtime.block_on(run(&arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "load: error: {error}");
            ExitCode::from(2)
        }
    }
}
