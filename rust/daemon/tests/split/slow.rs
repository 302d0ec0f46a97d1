//! Nothing ends a request for being slow.

use std::time::Duration;

use splitcore_core::config::MachineConfig;

use crate::fleet::Hold;
use crate::kit::{Ask, Kit, managed, told};

/// Above every limit of the service, the workers and the protocol that could be taken for one.
const PREFILL: Duration = Duration::from_secs(31);

#[test]
fn a_prompt_that_computes_for_half_a_minute_is_no_failure_by_default() {
    // But for addresses, and the wait for workers of an earlier service.
    let kit = Kit::with(managed(), (200, 200), |mut options| {
        options.machine = MachineConfig::default();
        options
    });
    kit.hold('p', Some(Hold { prompts: true, layer: 1 }));
    let ask = Ask::new("slow", 2, 10);
    let call = kit.call("slow", &ask.body());
    kit.wait("it computes", |_| kit.stands("p0") || kit.stands("p1"));
    // This is the pass.
    std::thread::sleep(PREFILL);
    kit.hold('p', None);
    assert_eq!(told(&call.join().unwrap().rest(), 1), [(ask.text(), "length".to_owned())]);
    kit.idle();
    assert_eq!(kit.pairs("slow").len(), 1, "once, and where it was");
    assert_eq!((kit.counter("faults"), kit.counter("refused"), kit.counter("resent")), (0, 0, 0));
    assert!(kit.end().iter().all(|stats| stats.sessions == 1), "every heartbeat was answered");
}
