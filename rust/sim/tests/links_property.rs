//! Flows on shared NICs against a reference that works everything out anew at every change.

use proptest::prelude::*;
use splitcore_sim::links::{Contention, FlowId, Links, Nic};

const MACHINES: u32 = 6;

/// Both sides round ends up. Where an end lies on a whole nanosecond, the noise of either sum can push it to the
/// next, and the flows that share with it wait up to as long; a difference beyond 1 ns is one case in 100,000.
const ENDS_TOLERANCE_NS: u64 = 8;

/// What happens at one time.
#[derive(Debug, Clone)]
enum Step {
    Start { after_ns: u64, from: u32, to: u32, bytes: u64, cap: Option<f64> },
    Cancel { after_ns: u64, which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let after = prop_oneof![Just(0_u64), 0..3_000_000_u64];
    let cap = prop_oneof![
        2 => Just(None),
        1 => (1e7..2e9_f64).prop_map(Some),
        1 => prop::sample::select(vec![0.1e9, 0.25e9, 0.5e9, 1e9]).prop_map(Some),
    ];
    prop_oneof![
        6 => (after.clone(), 0..MACHINES, 0..MACHINES, 1..4_000_000_u64, cap)
            .prop_map(|(after_ns, from, to, bytes, cap)| Step::Start { after_ns, from, to, bytes, cap }),
        1 => (after, 0..64_usize).prop_map(|(after_ns, which)| Step::Cancel { after_ns, which }),
    ]
}

fn nics() -> impl Strategy<Value = Vec<Nic>> {
    let capacity = prop::sample::select(vec![0.5e9, 1e9, 1e9, 2e9, 0.777_777_777e9]);
    prop::collection::vec((capacity.clone(), capacity), MACHINES as usize).prop_map(|nics| {
        nics.into_iter()
            .map(|(send_bytes_per_s, receive_bytes_per_s)| Nic { send_bytes_per_s, receive_bytes_per_s })
            .collect()
    })
}

/// A flow of the reference.
#[derive(Debug, Clone)]
struct Stream {
    from: usize,
    to: usize,
    cap: f64,
    left_bytes: f64,
    since_ns: u64,
    rate: f64,
    live: bool,
    end_ns: u64,
}

/// Max-min rates in the plainest way: raise all flows to the next stop, again and again.
fn set_rates(nics: &[Nic], streams: &mut [Stream], now_ns: u64) {
    let live: Vec<usize> = (0..streams.len()).filter(|&index| streams[index].live).collect();
    let mut rates = vec![None; streams.len()];
    loop {
        let rising = |index: &&usize| rates[**index].is_none();
        let mut stop = f64::INFINITY;
        for index in live.iter().filter(rising) {
            stop = stop.min(streams[*index].cap);
        }
        let mut full = vec![(f64::INFINITY, f64::INFINITY); nics.len()];
        for (machine, nic) in nics.iter().enumerate() {
            let level = |capacity: f64, uses: &dyn Fn(&Stream) -> bool| {
                let users: Vec<usize> = live.iter().copied().filter(|&index| uses(&streams[index])).collect();
                let fixed: f64 = users.iter().filter_map(|&index| rates[index]).sum();
                let open = users.iter().filter(rising).count();
                if open == 0 { f64::INFINITY } else { (capacity - fixed) / open as f64 }
            };
            full[machine].0 = level(nic.send_bytes_per_s, &|stream| stream.from == machine);
            full[machine].1 = level(nic.receive_bytes_per_s, &|stream| stream.to == machine);
            stop = stop.min(full[machine].0).min(full[machine].1);
        }
        if stop.is_infinite() {
            break;
        }
        for &index in &live {
            let stream = &streams[index];
            let binding = stream.cap.min(full[stream.from].0).min(full[stream.to].1);
            if rates[index].is_none() && binding <= stop {
                rates[index] = Some(stop);
            }
        }
    }
    for index in live {
        let stream = &mut streams[index];
        if stream.end_ns > now_ns || stream.rate == 0.0 {
            stream.left_bytes -= stream.rate * ((now_ns - stream.since_ns) as f64 / 1e9);
            stream.since_ns = now_ns;
            stream.rate = rates[index].expect("every live flow has a rate");
            let lasts_ns = stream.left_bytes.max(0.0) / stream.rate * 1e9;
            stream.end_ns = now_ns + (lasts_ns * (1.0 - 1e-15)).ceil() as u64;
        }
    }
}

/// Ends of all flows by start order (`None` for stopped ones), by the reference.
fn reference_ends(nics: &[Nic], steps: &[Step]) -> Vec<Option<u64>> {
    let mut streams: Vec<Stream> = Vec::new();
    let mut now_ns = 0;
    let advance = |streams: &mut Vec<Stream>, to_ns: u64| {
        let next = |streams: &[Stream]| {
            streams.iter().filter(|stream| stream.live).map(|stream| stream.end_ns).min()
        };
        while let Some(next_ns) = next(streams).filter(|&next_ns| next_ns <= to_ns) {
            for stream in streams.iter_mut().filter(|stream| stream.live && stream.end_ns <= next_ns) {
                stream.live = false;
            }
            set_rates(nics, streams, next_ns);
        }
    };
    for step in steps {
        match *step {
            Step::Start { after_ns, from, to, bytes, cap } => {
                now_ns += after_ns;
                advance(&mut streams, now_ns);
                let (from, to, left_bytes) = (from as usize, to as usize, bytes as f64);
                let cap = cap.unwrap_or(f64::INFINITY);
                let (since_ns, end_ns) = (now_ns, u64::MAX);
                streams.push(Stream { from, to, cap, left_bytes, since_ns, rate: 0.0, live: true, end_ns });
            }
            Step::Cancel { after_ns, which } => {
                now_ns += after_ns;
                advance(&mut streams, now_ns);
                if let Some(stream) = streams.get_mut(which).filter(|stream| stream.live) {
                    stream.live = false;
                    stream.end_ns = u64::MAX;
                }
            }
        }
        set_rates(nics, &mut streams, now_ns);
    }
    advance(&mut streams, u64::MAX);
    streams.iter().map(|stream| Some(stream.end_ns).filter(|&end_ns| end_ns < u64::MAX)).collect()
}

/// Flows in order of completion with their index by start, and how many bytes went through.
fn run(nics: &[Nic], steps: &[Step]) -> (Vec<(usize, u64)>, u128) {
    let mut links = Links::new(nics, Contention::On);
    let mut ids: Vec<FlowId> = Vec::new();
    let mut ends = Vec::new();
    let mut now_ns = 0;
    let mut advance = |links: &mut Links, ids: &[FlowId], to_ns: u64| {
        let mut done = Vec::new();
        while let Some(next_ns) = links.next_completion().filter(|&next_ns| next_ns <= to_ns) {
            done.clear();
            links.complete_due(next_ns, &mut done);
            for id in &done {
                let index = ids.iter().rposition(|other| other == id).expect("a flow that was started");
                ends.push((index, next_ns));
            }
        }
    };
    for step in steps {
        match *step {
            Step::Start { after_ns, from, to, bytes, cap } => {
                now_ns += after_ns;
                advance(&mut links, &ids, now_ns);
                ids.push(links.start(now_ns, from, to, bytes, cap));
            }
            Step::Cancel { after_ns, which } => {
                now_ns += after_ns;
                advance(&mut links, &ids, now_ns);
                if let Some(&id) = ids.get(which) {
                    links.cancel(now_ns, id);
                }
            }
        }
    }
    advance(&mut links, &ids, u64::MAX);
    assert_eq!(links.active(), 0);
    (ends, links.delivered_bytes())
}

/// Starts everything at once, stops some, and returns the flows left with what they use.
fn standing(nics: &[Nic], steps: &[Step]) -> (Vec<Stream>, Vec<f64>) {
    let mut links = Links::new(nics, Contention::On);
    let mut flows: Vec<(FlowId, Stream)> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        match *step {
            Step::Start { from, to, cap, .. } => {
                let id = links.start(index as u64, from, to, u64::MAX / 2, cap);
                let cap = cap.unwrap_or(f64::INFINITY);
                let (from, to) = (from as usize, to as usize);
                let (since_ns, left_bytes, end_ns) = (0, 1e12, u64::MAX);
                flows.push((
                    id,
                    Stream { from, to, cap, left_bytes, since_ns, rate: 0.0, live: true, end_ns },
                ));
            }
            Step::Cancel { which, .. } if which < flows.len() => {
                let (id, _) = flows.remove(which);
                assert!(links.cancel(index as u64, id));
            }
            Step::Cancel { .. } => {}
        }
        if index % 3 == 0 {
            links.next_completion(); // Settles; otherwise changes of several times pile up only if time stands.
        }
    }
    let rates = flows.iter().map(|&(id, _)| links.rate_bytes_per_s(id).expect("a live flow")).collect();
    (flows.into_iter().map(|(_, stream)| stream).collect(), rates)
}

fn close(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * right.abs()
}

proptest! {
    #[test]
    fn ends_are_those_of_the_reference(nics in nics(), steps in prop::collection::vec(step(), 1..50)) {
        let (ends, delivered_bytes) = run(&nics, &steps);
        let expected = reference_ends(&nics, &steps);
        let mut found = vec![None; expected.len()];
        for &(index, end_ns) in &ends {
            prop_assert_eq!(found[index], None, "flow {} ended twice", index);
            found[index] = Some(end_ns);
        }
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            if let (Some(found), Some(expected)) = (found, expected) {
                prop_assert!(found.abs_diff(*expected) <= ENDS_TOLERANCE_NS, "flow {}: {} for {}", index, found, expected);
            } else {
                prop_assert_eq!(found, expected, "flow {}", index);
            }
        }
        let starts: Vec<u64> = steps.iter().filter_map(|step| match step {
            Step::Start { bytes, .. } => Some(*bytes),
            Step::Cancel { .. } => None,
        }).collect();
        let sum: u128 = ends.iter().map(|&(index, _)| u128::from(starts[index])).sum();
        prop_assert_eq!(delivered_bytes, sum);
    }

    #[test]
    fn order_is_by_end_then_start_and_repeats(nics in nics(), steps in prop::collection::vec(step(), 1..50)) {
        let (ends, _) = run(&nics, &steps);
        let mut sorted = ends.clone();
        sorted.sort_by_key(|&(index, end_ns)| (end_ns, index));
        prop_assert_eq!(&ends, &sorted);
        prop_assert_eq!(&ends, &run(&nics, &steps).0);
    }

    #[test]
    fn rates_are_max_min_fair(nics in nics(), steps in prop::collection::vec(step(), 1..60)) {
        let (mut streams, rates) = standing(&nics, &steps);
        set_rates(&nics, &mut streams, 1);
        for (stream, &rate) in streams.iter().zip(&rates) {
            prop_assert!(close(rate, stream.rate), "{} for {:?}", rate, stream);
        }
        let using = |uses: &dyn Fn(&Stream) -> bool| {
            let rates = streams.iter().zip(&rates).filter(|(stream, _)| uses(stream)).map(|(_, &rate)| rate);
            rates.fold((0.0, 0.0_f64), |(sum, most), rate| (sum + rate, most.max(rate)))
        };
        let sent: Vec<_> = (0..nics.len()).map(|m| using(&|stream| stream.from == m)).collect();
        let received: Vec<_> = (0..nics.len()).map(|m| using(&|stream| stream.to == m)).collect();
        for (machine, nic) in nics.iter().enumerate() {
            prop_assert!(sent[machine].0 <= nic.send_bytes_per_s * (1.0 + 1e-9));
            prop_assert!(received[machine].0 <= nic.receive_bytes_per_s * (1.0 + 1e-9));
        }
        // Every flow runs at its cap, or has the largest rate of a NIC that is full.
        for (stream, &rate) in streams.iter().zip(&rates) {
            let (out, inn) = (sent[stream.from], received[stream.to]);
            let bound = |(sum, most): (f64, f64), capacity: f64| close(sum, capacity) && rate >= most * (1.0 - 1e-9);
            let held = close(rate, stream.cap)
                || bound(out, nics[stream.from].send_bytes_per_s)
                || bound(inn, nics[stream.to].receive_bytes_per_s);
            prop_assert!(held, "nothing holds {:?} at {}", stream, rate);
        }
    }
}
