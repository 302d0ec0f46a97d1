//! The order of what is asked of a device, over one that keeps the rules of the real ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use splitcore_core::id::RequestId;
use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, KvRange, Planes, PoolShape, Shard, TokenOrder, Values,
};

use super::driver::{Driver, Handle};
use super::fake::{Asked, FakeDriver, Hardware};
use super::handles::Imports;
use super::memory::{Device, DeviceView, memory_of, pool_at, pool_on};
use crate::connect::{ConnectOptions, connect};
use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::landing::Arrival;
use crate::pool::Pool;
use crate::receiver::{ListenOptions, Receiver};
use crate::transfer::{Completion, Grant, Link, PeerState, TransferKey};

pub(super) const LAYERS: u16 = 2;
pub(super) const LONG: Duration = Duration::from_secs(10);

pub(super) fn shape() -> PoolShape {
    let layout = KvLayout {
        layers: LAYERS,
        values: Values::Heads { heads: 2, head_dim: 4 },
        dtype: Dtype::F16,
        block_tokens: 4,
        order: TokenOrder::Nhd,
        planes: Planes::Together,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    };
    PoolShape { layout, blocks: 16 }
}

pub(super) fn device(hardware: &Arc<Hardware>, process: u64) -> Arc<Device> {
    Device::new(Arc::new(FakeDriver { hardware: hardware.clone(), process }))
}

pub(super) fn connected(pool: &Arc<Pool>, receiver: &Receiver) -> Arc<dyn Link> {
    let me = Incarnation::random().unwrap();
    connect(pool, me, receiver.endpoint(), &ConnectOptions::new("m")).unwrap()
}

/// Lets the device run when it is dropped.
pub(super) struct Thaw(Arc<Hardware>);

impl Drop for Thaw {
    fn drop(&mut self) {
        self.0.thaw();
    }
}

/// A receiver in process 1 and a sender in process 2, on one device.
pub(super) struct Pair {
    /// First, so that a test that fails while the device is frozen ends.
    _thaw: Thaw,
    pub(super) hardware: Arc<Hardware>,
    pub(super) theirs: Arc<Pool>,
    pub(super) ours: Arc<Pool>,
    pub(super) receiver: Receiver,
    pub(super) me: Incarnation,
    pub(super) link: Arc<dyn Link>,
}

pub(super) fn receiver_on(pool: &Arc<Pool>) -> Receiver {
    let options = ListenOptions { slots: 4, ..ListenOptions::new("m") };
    Receiver::listen(pool.clone(), Incarnation::random().unwrap(), options).unwrap()
}

pub(super) fn pair() -> Pair {
    let hardware = Arc::new(Hardware::default());
    let theirs = Arc::new(pool_on(device(&hardware, 1), shape()).unwrap());
    let ours = Arc::new(pool_on(device(&hardware, 2), shape()).unwrap());
    let receiver = receiver_on(&theirs);
    let me = Incarnation::random().unwrap();
    let link = connect(&ours, me, receiver.endpoint(), &ConnectOptions::new("m")).unwrap();
    Pair { _thaw: Thaw(hardware.clone()), hardware, theirs, ours, receiver, me, link }
}

/// Block `from` to block `to`, whole, in one layer.
pub(super) fn range(from: u32, to: u32, layer: u16) -> KvRange {
    let bytes = shape().layout.layer_block_bytes();
    let offset = u32::from(layer) * bytes;
    KvRange { from: BlockId(from), from_offset: offset, to: BlockId(to), to_offset: offset, bytes }
}

impl Pair {
    fn granted(&self, request: u64, blocks: &[u32]) -> Grant {
        let layer_bytes = u64::from(shape().layout.layer_block_bytes()) * blocks.len() as u64;
        let blocks = blocks.iter().copied().map(BlockId).collect();
        let grant = self.receiver.landing().open(self.me, RequestId(request), blocks, layer_bytes).unwrap();
        self.link.begin(&grant).unwrap();
        grant
    }

    fn send(&self, key: TransferKey, layer: u16, pairs: &[(u32, u32)]) -> Result<(), TransferError> {
        let ranges: Vec<KvRange> = pairs.iter().map(|&(from, to)| range(from, to, layer)).collect();
        self.link.put(key, layer, &ranges)?;
        self.link.publish(key, layer, 4)
    }

    /// The only end that comes.
    fn end(&self) -> Completion {
        let mut ended = Vec::new();
        assert!(self.link.wait(LONG), "no transfer ended");
        self.link.poll(&mut ended);
        assert_eq!(ended.len(), 1);
        ended.remove(0)
    }

    fn arrivals_until(&self, wanted: &Arrival) -> Vec<Arrival> {
        arrivals_until(&self.receiver, wanted)
    }

    fn holds(pool: &Arc<Pool>) -> Vec<u8> {
        let mut bytes = vec![0; shape().bytes() as usize];
        DeviceView::of(pool).unwrap().read(0, &mut bytes).unwrap();
        bytes
    }

    /// Fills the sender's pool with bytes that are all different from their neighbours.
    fn fill(&self) {
        let bytes: Vec<u8> = (0..shape().bytes()).map(|at| (at * 7 + at / 251 + 1) as u8).collect();
        DeviceView::of(&self.ours).unwrap().write(0, &bytes).unwrap();
    }

    fn base(pool: &Arc<Pool>) -> u64 {
        memory_of(pool).unwrap().pointer()
    }
}

pub(super) fn arrivals_until(receiver: &Receiver, wanted: &Arrival) -> Vec<Arrival> {
    let (until, mut seen) = (Instant::now() + LONG, Vec::new());
    while !seen.contains(wanted) {
        assert!(Instant::now() < until, "{wanted:?} does not come, only {seen:?}");
        receiver.landing().wait(Duration::from_secs(1));
        receiver.landing().poll(&mut seen);
    }
    seen
}

#[test]
fn scattered_blocks_are_there_once_the_stream_has_waited_and_not_before() {
    let pair = pair();
    pair.fill();
    let key = pair.granted(1, &[9, 3, 4]).key;
    let pairs = [(0, 9), (15, 3), (7, 4)];
    let (source, empty) = (Pair::holds(&pair.ours), vec![0; shape().bytes() as usize]);
    let stream = DeviceView::of(&pair.theirs).unwrap().stream().unwrap();
    pair.hardware.freeze();
    for layer in 0..LAYERS {
        pair.send(key, layer, &pairs).unwrap();
        let layers = pair.receiver.layers().unwrap();
        assert_eq!(layers.wait_layer_on_stream(key, layer, stream.raw(), LONG).unwrap().tokens, 4);
    }
    assert_eq!(Pair::holds(&pair.theirs), empty, "the layers are published, their copies have not run");
    pair.hardware.thaw();
    stream.synchronize().unwrap();
    let mut expected = empty;
    for (from, to) in pairs {
        for layer in 0..LAYERS {
            let range = range(from, to, layer);
            let at = |block, offset| shape().locate(block, offset).unwrap() as usize;
            let (from, to) = (at(range.from, range.from_offset), at(range.to, range.to_offset));
            let bytes = range.bytes as usize;
            expected[to..to + bytes].copy_from_slice(&source[from..from + bytes]);
        }
    }
    assert_eq!(Pair::holds(&pair.theirs), expected);
    pair.receiver.landing().settled(key, LONG).unwrap();
    pair.receiver.landing().release(key).unwrap();
    pair.hardware.kept_the_rules();
}

#[test]
fn a_published_layer_can_be_released_only_when_its_copies_are_done() {
    let pair = pair();
    let key = pair.granted(1, &[0]).key;
    pair.hardware.freeze();
    for layer in 0..LAYERS {
        pair.send(key, layer, &[(0, 0)]).unwrap();
    }
    let landing = pair.receiver.landing();
    assert!(landing.wait_layer(key, LAYERS - 1, LONG).is_ok());
    assert_eq!(landing.release(key), Err(TransferError::NotFenced { key }));
    let layers = pair.receiver.layers().unwrap();
    let early = layers.wait_layer(key, 0, Duration::from_millis(1));
    assert!(matches!(early, Err(TransferError::Timeout { layer: 0, .. })), "{early:?}");
    assert!(matches!(landing.settled(key, Duration::ZERO), Err(TransferError::Timeout { .. })));
    let mut ended = Vec::new();
    pair.link.poll(&mut ended);
    assert_eq!(ended, [], "the source may not be reused yet");
    pair.hardware.thaw();
    layers.wait_layer(key, 0, LONG).unwrap();
    landing.settled(key, LONG).unwrap();
    landing.release(key).unwrap();
    assert_eq!(pair.end(), Completion::LocalDone(key));
    pair.hardware.kept_the_rules();
}

#[test]
fn a_layer_whose_event_is_not_recorded_is_not_published() {
    let pair = pair();
    let key = pair.granted(1, &[0]).key;
    pair.send(key, 0, &[(0, 0)]).unwrap();
    pair.hardware.fail(Some("cuEventRecord"));
    let refused = pair.send(key, 1, &[(0, 0)]).unwrap_err();
    assert_eq!(refused.to_string(), "cuEventRecord: CUDA_ERROR_UNKNOWN (made up)");
    assert_eq!(pair.end(), Completion::Failed(key, refused));
    assert_eq!(pair.receiver.landing().landed(key), Ok(1));
    pair.arrivals_until(&Arrival::Fenced(key));
    pair.hardware.kept_the_rules();
}

#[test]
fn a_layer_is_published_after_its_event_is_recorded_in_every_transfer() {
    let pair = pair();
    for request in 0..20 {
        let key = pair.granted(request, &[1]).key;
        for layer in 0..LAYERS {
            pair.send(key, layer, &[(0, 1)]).unwrap();
            pair.receiver.landing().wait_layer(key, layer, LONG).unwrap();
            let recorded =
                pair.hardware.asked().iter().filter(|asked| matches!(asked, Asked::Recorded { .. })).count();
            assert_eq!(recorded as u64, request * u64::from(LAYERS) + u64::from(layer) + 1);
        }
        pair.receiver.landing().settled(key, LONG).unwrap();
        pair.receiver.landing().release(key).unwrap();
        assert_eq!(pair.end(), Completion::LocalDone(key));
    }
    pair.hardware.kept_the_rules();
}

#[test]
fn a_device_that_fails_a_copy_ends_the_transfer_on_both_sides() {
    let pair = pair();
    let key = pair.granted(1, &[0]).key;
    pair.hardware.fail(Some("cuMemcpyDtoDAsync"));
    assert!(matches!(pair.send(key, 0, &[(0, 0)]), Err(TransferError::Device { .. })));
    assert!(matches!(pair.end(), Completion::Failed(ended, TransferError::Device { .. }) if ended == key));
    pair.arrivals_until(&Arrival::Fenced(key));
    pair.receiver.landing().release(key).unwrap();
}

#[test]
fn what_the_receiver_stops_is_fenced_when_its_copies_are_done() {
    let pair = pair();
    let key = pair.granted(1, &[0]).key;
    pair.hardware.freeze();
    pair.link.put(key, 0, &[range(0, 0, 0)]).unwrap();
    let landing = pair.receiver.landing();
    landing.stop(key).unwrap();
    assert!(matches!(pair.link.put(key, 1, &[range(0, 0, 1)]), Err(TransferError::Stopped { .. })));
    // A fence that came too early would come at once.
    let mut seen = Vec::new();
    while landing.wait(Duration::from_millis(200)) {
        landing.poll(&mut seen);
    }
    assert!(!seen.contains(&Arrival::Fenced(key)), "{seen:?}");
    assert_eq!(landing.release(key), Err(TransferError::NotFenced { key }));
    pair.hardware.thaw();
    pair.arrivals_until(&Arrival::Fenced(key));
    landing.release(key).unwrap();
    assert_eq!(pair.end(), Completion::Fenced(key));
    pair.hardware.kept_the_rules();
}

#[test]
fn a_whole_transfer_that_is_stopped_before_its_copies_are_done_is_not_fenced_before() {
    let pair = pair();
    let key = pair.granted(1, &[0]).key;
    pair.hardware.freeze();
    for layer in 0..LAYERS {
        pair.send(key, layer, &[(0, 0)]).unwrap();
    }
    let landing = pair.receiver.landing();
    landing.stop(key).unwrap();
    let mut seen = Vec::new();
    landing.poll(&mut seen);
    assert!(!seen.contains(&Arrival::Fenced(key)), "{seen:?}");
    assert!(landing.settled(key, LONG).is_err());
    pair.hardware.thaw();
    pair.arrivals_until(&Arrival::Fenced(key));
    landing.release(key).unwrap();
}

#[test]
fn what_the_sender_stops_ends_once_and_the_receiver_learns_it() {
    let pair = pair();
    let key = pair.granted(1, &[0]).key;
    pair.send(key, 0, &[(0, 0)]).unwrap();
    pair.link.stop(key);
    assert_eq!(pair.end(), Completion::Fenced(key));
    let seen = pair.arrivals_until(&Arrival::Fenced(key));
    assert!(seen.iter().any(|arrival| matches!(arrival, Arrival::Failed(failed, _) if *failed == key)));
    assert!(matches!(pair.send(key, 1, &[(0, 0)]), Err(TransferError::Unknown { .. })));
}

#[test]
fn copies_wait_for_the_stream_that_makes_their_source() {
    let pair = pair();
    pair.fill();
    let view = DeviceView::of(&pair.ours).unwrap();
    let compute = view.stream().unwrap();
    pair.hardware.freeze();
    // The stream still has to make block 0 of layer 0, from block 5.
    let place = |block| shape().locate(BlockId(block), 0).unwrap();
    let bytes = u64::from(shape().layout.layer_block_bytes());
    compute.copy(place(5), place(0), bytes).unwrap();
    pair.link.after(compute.raw()).unwrap();
    let key = pair.granted(1, &[2]).key;
    pair.send(key, 0, &[(0, 2)]).unwrap();
    pair.send(key, 1, &[(0, 2)]).unwrap();
    pair.hardware.thaw();
    pair.receiver.landing().settled(key, LONG).unwrap();
    let (source, target) = (Pair::holds(&pair.ours), Pair::holds(&pair.theirs));
    let at = |block| place(block) as usize..(place(block) + bytes) as usize;
    assert_eq!(target[at(2)], source[at(5)]);
}

#[test]
fn ten_thousand_transfers_leave_nothing_open() {
    let pair = pair();
    for request in 0..10_000 {
        let key = pair.granted(request, &[(request % 16) as u32]).key;
        for layer in 0..LAYERS {
            pair.send(key, layer, &[(3, (request % 16) as u32)]).unwrap();
        }
        assert_eq!(pair.end(), Completion::LocalDone(key));
        pair.receiver.landing().settled(key, LONG).unwrap();
        pair.receiver.landing().release(key).unwrap();
    }
    let Pair { hardware, theirs, ours, receiver, link, .. } = pair;
    let base = Pair::base(&theirs);
    drop((link, ours));
    drop((receiver, theirs));
    assert!(hardware.is_asked(Asked::Freed { base }));
    assert_eq!(hardware.left_over(), (0, 0, 0));
    let asked = hardware.asked();
    let count = |what: fn(&Asked) -> bool| asked.iter().filter(|asked| what(asked)).count();
    assert_eq!(count(|asked| matches!(asked, Asked::Opened { .. })), 1);
    assert_eq!(count(|asked| matches!(asked, Asked::Closed { .. })), 1);
    assert_eq!(count(|asked| matches!(asked, Asked::Recorded { .. })), 20_000);
    hardware.kept_the_rules();
}

#[test]
fn two_links_open_the_memory_once_and_the_last_closes_it() {
    let pair = pair();
    let second = connected(&pair.ours, &pair.receiver);
    let (opened, closed) = {
        let base = Pair::base(&pair.theirs);
        (Asked::Opened { process: 2, base }, Asked::Closed { process: 2, base })
    };
    assert_eq!(pair.hardware.asked().iter().filter(|&&asked| asked == opened).count(), 1);
    drop(second);
    assert!(!pair.hardware.asked().contains(&closed));
    drop(pair.link);
    assert!(pair.hardware.asked().contains(&closed), "closed by the time that the link is gone");
    pair.receiver.landing().until_left(pair.me, LONG);
    assert_eq!(pair.receiver.landing().writer_state(pair.me), PeerState::Lost);
    pair.hardware.kept_the_rules();
}

#[test]
fn memory_is_freed_only_when_the_sender_has_closed_it() {
    let pair = pair();
    let key = pair.granted(1, &[0]).key;
    pair.hardware.freeze();
    pair.link.put(key, 0, &[range(0, 0, 0)]).unwrap();
    let Pair { hardware, theirs, ours, receiver, link, _thaw, .. } = pair;
    let base = Pair::base(&theirs);
    // The link is kept: that its receiver closes is enough for it to let go, once its copies are done.
    drop((receiver, theirs));
    assert!(!hardware.asked().contains(&Asked::Freed { base }));
    hardware.thaw();
    assert!(hardware.is_asked(Asked::Freed { base }));
    let asked = hardware.asked();
    let place = |what| asked.iter().position(|&asked| asked == what);
    assert!(place(Asked::Closed { process: 2, base }) < place(Asked::Freed { base }));
    assert!(link.wait(LONG));
    let mut ended = Vec::new();
    link.poll(&mut ended);
    assert!(
        matches!(&ended[..], [Completion::Failed(failed, TransferError::PeerLost { .. })] if *failed == key)
    );
    assert!(matches!(link.put(key, 0, &[range(0, 0, 0)]), Err(TransferError::PeerLost { .. })));
    drop((link, ours));
    hardware.kept_the_rules();
}

#[test]
fn a_new_handle_or_a_new_life_of_the_peer_is_mapped_anew() {
    let hardware = Arc::new(Hardware::default());
    let exporter = FakeDriver { hardware: hardware.clone(), process: 1 };
    let bases = [exporter.allocate(64).unwrap(), exporter.allocate(64).unwrap()];
    let handles: Vec<Handle> = bases.iter().map(|&base| exporter.export(base).unwrap()).collect();
    let imports = Imports::new(Arc::new(FakeDriver { hardware: hardware.clone(), process: 2 }));
    let one = imports.open(Incarnation(7), handles[0]).unwrap();
    let same = imports.open(Incarnation(7), handles[0]).unwrap();
    let other = imports.open(Incarnation(7), handles[1]).unwrap();
    assert_eq!(one.base(), same.base());
    assert_ne!(one.base(), other.base());
    assert_eq!(imports.len(), 2);
    drop((one, same));
    assert_eq!(imports.len(), 1);
    let later = imports.open(Incarnation(8), handles[0]).unwrap();
    assert_eq!(imports.len(), 2);
    drop((later, other));
    assert_eq!((imports.len(), hardware.left_over().0), (0, 0));
    hardware.kept_the_rules();
}

#[test]
fn a_mapping_that_the_driver_refuses_is_not_kept_and_may_be_tried_again() {
    let pair = pair();
    pair.hardware.fail(Some("cuIpcOpenMemHandle"));
    drop(pair.link);
    let again =
        |me: u64| connect(&pair.ours, Incarnation(me), pair.receiver.endpoint(), &ConnectOptions::new("m"));
    let text = again(1).map(drop).unwrap_err().to_string();
    assert_eq!(text, "cuIpcOpenMemHandle: CUDA_ERROR_UNKNOWN (made up)");
    pair.hardware.fail(None);
    drop(again(2).unwrap());
    pair.hardware.kept_the_rules();
}

#[test]
fn both_ends_in_one_process_are_refused_with_the_reason() {
    let pair = pair();
    let same = Arc::new(pool_on(device(&pair.hardware, 1), shape()).unwrap());
    let refused = connect(&same, Incarnation(1), pair.receiver.endpoint(), &ConnectOptions::new("m"));
    let text = refused.map(drop).unwrap_err().to_string();
    assert!(text.contains("cannot open memory in the process that exported it"), "{text}");
    pair.hardware.kept_the_rules();
}

#[test]
fn a_device_that_cannot_be_reached_is_named() {
    let pair = pair();
    let mut endpoint = pair.receiver.endpoint().clone();
    endpoint.device = Some("GPU-other".to_owned());
    let refused = connect(&pair.ours, Incarnation(1), &endpoint, &ConnectOptions::new("m"));
    let text = refused.map(drop).unwrap_err().to_string();
    assert_eq!(text, "device: GPU-fake here, GPU-other (GPU-other is not visible) there");
}

#[test]
fn adopted_memory_is_shared_by_its_base_and_that_of_virtual_allocators_is_refused() {
    let hardware = Arc::new(Hardware::default());
    let owner = FakeDriver { hardware: hardware.clone(), process: 1 };
    let base = owner.allocate(shape().bytes() + 512).unwrap();
    let adopt = |at, len| pool_at(device(&hardware, 1), shape(), at, len, Box::new(()));
    let pool = adopt(base + 512, shape().bytes()).unwrap();
    let (handle, offset) = memory_of(&pool).unwrap().exported();
    assert_eq!((handle, offset), (owner.export(base).unwrap(), 512));
    let short = adopt(base + 1024, shape().bytes()).map(drop).unwrap_err().to_string();
    assert!(short.contains("bytes of memory for a pool of"), "{short}");
    hardware.fail(Some("shareable"));
    let text = adopt(base, shape().bytes()).map(drop).unwrap_err().to_string();
    assert!(text.contains("expandable_segments") && text.contains("cudaMallocAsync"), "{text}");
    drop(pool);
    assert!(!hardware.asked().contains(&Asked::Freed { base }), "it is the caller's");
}

#[test]
fn handles_are_read_as_they_were_written_and_nothing_else_is() {
    let handle = Handle(std::array::from_fn(|at| (at * 37) as u8));
    assert_eq!(Handle::from_hex(&handle.to_hex()), Some(handle));
    for wrong in [String::new(), "0".repeat(127), "g".repeat(128), "+".repeat(128)] {
        assert_eq!(Handle::from_hex(&wrong), None, "{wrong}");
    }
}
