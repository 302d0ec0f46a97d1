//! What is logged: of each decision and each end, and of too few open files.

use splitcore_daemon::{Options, Server};

use crate::common::options;
use crate::kit::{Ask, Kit, fragile, keep_log, lines};

/// The value of a field of a line.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.split_once(&format!(" {name}="))?.1;
    Some(rest.split(' ').next().unwrap_or_default())
}

#[test]
fn the_log_says_of_each_request_its_pair_why_and_where_its_time_went() {
    keep_log();
    let kit = Kit::start(fragile());
    let ask = Ask::new("in-the-log", 1, 6);
    let call = kit.call(&ask.name, &ask.body());
    call.join().unwrap().rest();
    kit.idle();
    let pair = kit.pairs(&ask.name).remove(0);
    let ended = lines(&["INFO", "ended", "in-the-log"]);
    let [ended] = ended.as_slice() else { panic!("{ended:?}") };
    assert_eq!(field(ended, "outcome"), Some("Finished"), "{ended}");
    assert_eq!((field(ended, "prompt_tokens"), field(ended, "output_tokens")), (Some("40"), Some("6")));
    let spans = ["dispatch_ms", "prefill_ms", "transfer_ms", "decode_wait_ms", "first_token_ms", "total_ms"];
    for name in spans {
        let span = field(ended, name).unwrap_or_else(|| panic!("no {name}: {ended}"));
        assert!(span.parse::<f64>().unwrap() >= 0.0, "{name}: {ended}");
    }
    // Services that start in one second give the same numbers, and each has a thread of its own.
    let thread = ended.split(' ').find(|word| word.starts_with("ThreadId")).unwrap();
    let placed = lines(&["DEBUG", thread, &format!(" placed request={} ", field(ended, "request").unwrap())]);
    let [placed] = placed.as_slice() else { panic!("{placed:?}") };
    for line in [ended, placed] {
        assert_eq!(field(line, "attempt"), Some("1"), "{line}");
        assert_eq!(field(line, "prompt"), Some(format!("\"{}\"", pair.prompt).as_str()), "{line}");
        assert_eq!(
            field(line, "token"),
            Some(format!("\"{}\"", pair.token.clone().unwrap()).as_str()),
            "{line}"
        );
    }
    for name in ["transfer", "prompt_step", "token_step", "prompt_load", "token_load", "runner_up"] {
        assert!(field(placed, name).is_some(), "no {name}: {placed}");
    }
    kit.end();
}

#[test]
fn fewer_open_files_than_connections_are_told_at_the_start() {
    keep_log();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // More than any system allows, unless it has no limit.
    let connections_max = 1 << 40;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    runtime.block_on(async { drop(Server::bind(Options { connections_max, ..options() }).await.unwrap()) });
    let told =
        lines(&["WARN", "the limit on open files is below connections_max", "connections_max=1099511627776"]);
    assert_eq!(told.len(), usize::from(limit.is_some()), "{told:?}");
    if let Some(limit) = limit {
        assert!(told[0].contains(&format!("open_files={limit}")), "{told:?}");
    }
}
