//! What the TCP backend moves in a second, beside a plain socket that moves the same bytes, in one run.
//!
//! `cargo run --release --example tcp_speed -- [block bytes] [MiB] [rounds]`. Figures of a busy machine vary twofold, so the two
//! take turns, and the best and the middle round of each are shown.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use splitcore_core::id::RequestId;
use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, KvRange, Planes, PoolShape, Shard, TokenOrder, Values,
};
use splitcore_transport::{
    Backend, ConnectOptions, Incarnation, Link, ListenOptions, Pool, Receiver, connect,
};

const LONG: Duration = Duration::from_secs(60);
const LAYERS: u16 = 8;

fn shape(block: u32, bytes: u64) -> PoolShape {
    let layout = KvLayout {
        layers: LAYERS,
        values: Values::Heads { heads: 1, head_dim: (block / 64 / 4) as u16 },
        dtype: Dtype::F16,
        block_tokens: 64,
        order: TokenOrder::Nhd,
        planes: Planes::Together,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    };
    PoolShape { layout, blocks: (bytes / u64::from(layout.block_bytes())) as u32 }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>().unwrap());
    let block = arguments.next().unwrap_or(256 << 10) as u32;
    let mib = arguments.next().unwrap_or(256);
    let rounds = arguments.next().unwrap_or(7);
    let shape = shape(block, mib << 20);
    let from = Arc::new(Pool::shared(shape).unwrap());
    let to = Arc::new(Pool::shared(shape).unwrap());
    fill(&from);
    let mut options = ListenOptions::new("m");
    options.local = false;
    let receiver = Receiver::listen(to.clone(), Incarnation(1), options).unwrap();
    let link = |checksums| {
        let options = ConnectOptions {
            backend: Some(Backend::Tcp),
            checksums: Some(checksums),
            ..ConnectOptions::new("m")
        };
        connect(&from, Incarnation(2 + u64::from(checksums)), receiver.endpoint(), &options).unwrap()
    };
    let (with, without) = (link(true), link(false));
    let mut seconds = [const { Vec::new() }; 3];
    let mut busy = [0.0; 3];
    for _ in 0..rounds {
        for (way, times) in seconds.iter_mut().enumerate() {
            let before = cpu();
            times.push(match way {
                0 => plain(&from, &to, block as usize),
                1 => moved(&receiver, &*with, Incarnation(3), &shape),
                _ => moved(&receiver, &*without, Incarnation(2), &shape),
            });
            busy[way] += cpu() - before;
        }
    }
    println!(
        "{mib} MiB in blocks of {} KiB, {LAYERS} layers: GB/s, best and median of {rounds}, and",
        block >> 10
    );
    println!("seconds of processor for a GB, both ends together");
    let bytes = shape.bytes() as f64;
    let mut plainly = (0.0, 0.0);
    let names = ["plain socket", "tcp, checked", "tcp, unchecked"];
    for ((name, mut times), busy) in names.into_iter().zip(seconds).zip(busy) {
        times.sort_by(f64::total_cmp);
        let (best, median) = (bytes / times[0] / 1e9, bytes / times[times.len() / 2] / 1e9);
        if name == "plain socket" {
            plainly = (best, median);
        }
        println!(
            "{name:16} {best:6.2} {median:6.2}   {:4.0} % {:4.0} % of plain   {:6.3} s",
            100.0 * best / plainly.0,
            100.0 * median / plainly.1,
            busy * 1e9 / (bytes * rounds as f64)
        );
    }
}

/// Seconds of processor that this process has had; the kernel counts hundredths.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn fill(pool: &Pool) {
    let base = pool.host_base().unwrap().as_ptr();
    for place in 0..pool.bytes() as usize {
        // SAFETY: inside the pool, which nobody else has yet.
        unsafe { base.add(place).write((place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as u8) };
    }
}

/// One transfer of the whole pool, until the receiver has its last layer.
fn moved(receiver: &Receiver, link: &dyn Link, writer: Incarnation, shape: &PoolShape) -> f64 {
    let landing = receiver.landing();
    let blocks: Vec<BlockId> = (0..shape.blocks).map(BlockId).collect();
    let bytes = shape.layout.layer_block_bytes();
    let layer_bytes = u64::from(bytes) * u64::from(shape.blocks);
    let grant = landing.open(writer, RequestId(1), blocks, layer_bytes).unwrap();
    let begun = Instant::now();
    link.begin(&grant).unwrap();
    for layer in 0..LAYERS {
        let offset = u32::from(layer) * bytes;
        let ranges: Vec<KvRange> = (0..shape.blocks)
            .map(|block| {
                let to = BlockId(shape.blocks - 1 - block);
                KvRange { from: BlockId(block), from_offset: offset, to, to_offset: offset, bytes }
            })
            .collect();
        link.put(grant.key, layer, &ranges).unwrap();
        link.publish(grant.key, layer, 64).unwrap();
    }
    for layer in 0..LAYERS {
        landing.wait_layer(grant.key, layer, LONG).unwrap();
    }
    let took = begun.elapsed().as_secs_f64();
    assert!(link.wait(LONG));
    let mut ends = Vec::new();
    link.poll(&mut ends);
    assert_eq!(ends.len(), 1);
    landing.release(grant.key).unwrap();
    took
}

/// The same bytes by `write` and `read` of one block each.
fn plain(from: &Arc<Pool>, to: &Arc<Pool>, block: usize) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (from, to) = (from.clone(), to.clone());
    let sender = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let (base, len) = (from.host_base().unwrap().as_ptr(), from.bytes() as usize);
        // SAFETY: the pool's bytes, which nobody writes now.
        let bytes = unsafe { std::slice::from_raw_parts(base, len) };
        let begun = Instant::now();
        for block in bytes.chunks(block) {
            stream.write_all(block).unwrap();
        }
        begun
    });
    let (mut stream, _) = listener.accept().unwrap();
    let (base, len) = (to.host_base().unwrap().as_ptr(), to.bytes() as usize);
    // SAFETY: the pool's bytes, which nobody else touches now.
    let bytes = unsafe { std::slice::from_raw_parts_mut(base, len) };
    for block in bytes.chunks_mut(block) {
        stream.read_exact(block).unwrap();
    }
    let end = Instant::now();
    (end - sender.join().unwrap()).as_secs_f64()
}
