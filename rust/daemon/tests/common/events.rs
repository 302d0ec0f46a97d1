//! A client that reads an answer in pieces, as events come.

use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

use super::{Answer, Client};

/// An answer that is being read.
pub(crate) struct Events {
    stream: BufReader<TcpStream>,
    head: String,
    /// What has come of the next event.
    text: String,
    over: bool,
}

/// The answer to a call: a stream, or something whole.
pub(crate) enum Called {
    Stream(Events),
    Whole(Answer),
}

impl Events {
    /// Calls, and returns once the head of the answer is there.
    pub(crate) fn call(mut client: Client, method: &str, path: &str, headers: &str, body: &str) -> Called {
        let length = body.len();
        let json = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{json}{headers}content-length: {length}\r\n\r\n{body}"
        );
        client.send(head.as_bytes()).unwrap();
        let mut stream = BufReader::new(client.stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).unwrap() > 0, "no whole head: {head}");
        }
        let mut answer = Answer { status: head[9..12].parse().unwrap(), head, body: Vec::new() };
        if answer.header("transfer-encoding") == Some("chunked") {
            assert_eq!(answer.status, 200);
            return Called::Stream(Self { stream, head: answer.head, text: String::new(), over: false });
        }
        let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        answer.body.resize(length, 0);
        stream.read_exact(&mut answer.body).unwrap();
        Called::Whole(answer)
    }

    pub(crate) fn head(&self) -> &str {
        &self.head
    }

    /// Reads one chunk; `false` after the last.
    fn chunk(&mut self) -> bool {
        let mut size = String::new();
        self.stream.read_line(&mut size).unwrap();
        let size =
            usize::from_str_radix(size.trim(), 16).unwrap_or_else(|_| panic!("the stream broke: '{size}'"));
        let mut bytes = vec![0; size + 2];
        self.stream.read_exact(&mut bytes).unwrap();
        self.text.push_str(std::str::from_utf8(&bytes[..size]).unwrap());
        self.over = size == 0;
        !self.over
    }

    /// The next event with its line ends; `None` after the last.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let rest = self.text.split_off(end + 2);
                return Some(std::mem::replace(&mut self.text, rest));
            }
            if self.over || !self.chunk() {
                assert_eq!(self.text, "", "the last event is whole");
                return None;
            }
        }
    }

    /// All that are left.
    pub(crate) fn rest(mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Goes away.
    pub(crate) fn leave(self) {
        self.stream.get_ref().shutdown(Shutdown::Both).unwrap();
    }
}

/// The id of an event.
pub(crate) fn id(event: &str) -> Option<&str> {
    event.lines().find_map(|line| line.strip_prefix("id: "))
}

/// The data of an event; `None` of the last.
pub(crate) fn data(event: &str) -> Option<Value> {
    let data = event.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
    (data != "[DONE]").then(|| serde_json::from_str(data).unwrap())
}
