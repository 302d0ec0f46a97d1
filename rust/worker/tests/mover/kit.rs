//! Machines that move real bytes, and a process of its own for one that is to die.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use splitcore_core::id::{Attempt, LegKey, MachineId, RequestId};
use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, Planes, PoolShape, Shard, TokenOrder, Values,
};
use splitcore_transport::{Backend, Pool};
use splitcore_wire::auth::Key;
use splitcore_wire::message::{GrantBody, PeerAddress};
use splitcore_worker::mover::{Mover, MoverEvent, MoverOptions};

pub(crate) const WAIT: Duration = Duration::from_secs(30);
pub(crate) const LAYERS: u16 = 5;
pub(crate) const BOTH: [Backend; 2] = [Backend::Shm, Backend::Tcp];
const HEADS: u16 = 2;
const HEAD_DIM: u16 = 8;

pub(crate) fn key(request: u64) -> LegKey {
    LegKey { request: RequestId(request), attempt: Attempt(1) }
}

pub(crate) fn blocks(ids: impl IntoIterator<Item = u32>) -> Vec<BlockId> {
    ids.into_iter().map(BlockId).collect()
}

/// Machines differ in the size of their blocks and in how these lie.
fn shape(index: u32, blocks: u32) -> PoolShape {
    let (block_tokens, arrangement) =
        if index.is_multiple_of(2) { (4, Arrangement::LayerFirst) } else { (8, Arrangement::BlockFirst) };
    let layout = KvLayout {
        layers: LAYERS,
        values: Values::Heads { heads: HEADS, head_dim: HEAD_DIM },
        dtype: Dtype::F32,
        block_tokens,
        order: TokenOrder::Nhd,
        planes: Planes::Together,
        arrangement,
        shard: Shard::WHOLE,
    };
    PoolShape { layout, blocks }
}

pub(crate) fn options(backend: Backend) -> MoverOptions {
    let mut options = MoverOptions::new("toy");
    options.connect.backend = Some(backend);
    options.listen.slots = 16;
    options
}

/// A machine, as its driver sees it.
pub(crate) struct Machine {
    pub(crate) pool: Arc<Pool>,
    pub(crate) mover: Mover,
    pub(crate) address: PeerAddress,
    told: Receiver<MoverEvent>,
    /// Events that nobody has asked for yet.
    kept: Vec<MoverEvent>,
}

impl Machine {
    pub(crate) fn start(index: u32, options: MoverOptions) -> Self {
        Self::with_blocks(index, options, 64)
    }

    pub(crate) fn with_blocks(index: u32, options: MoverOptions, blocks: u32) -> Self {
        let pool = Arc::new(Pool::shared(shape(index, blocks)).unwrap());
        let (sender, told) = channel();
        let tell = move |event| drop(sender.send(event));
        let mover = Mover::start(Arc::clone(&pool), options, tell).unwrap();
        let machine = MachineId { index, incarnation: 1 };
        let address = PeerAddress {
            machine,
            peer: String::new(),
            transfer: mover.transfer().to_owned(),
            key: Key::default(),
        };
        Self { pool, mover, address, told, kept: Vec::new() }
    }

    /// Blocks for so many tokens, from a first one on, two apart and downwards.
    pub(crate) fn table(&self, first: u32, tokens: u32) -> Vec<BlockId> {
        let count = self.pool.shape().layout.blocks_for(tokens);
        blocks((0..count).rev().map(|block| first + 2 * block))
    }

    /// Lets `source` write a leg here, and tells it so.
    pub(crate) fn grant(&mut self, key: LegKey, source: &mut Self, table: &[BlockId], tokens: u32) -> String {
        let transfer = self.mover.open(key, &source.address, table, tokens).unwrap();
        let body =
            GrantBody { blocks: table.iter().map(|block| block.0).collect(), transfer: transfer.clone() };
        source.mover.granted(key, &self.address, &body);
        transfer
    }

    /// Events until one is as wanted; the others are kept. Fails when none comes.
    pub(crate) fn until(&mut self, what: &str, mut so: impl FnMut(&MoverEvent) -> bool) -> MoverEvent {
        if let Some(at) = self.kept.iter().position(&mut so) {
            return self.kept.remove(at);
        }
        let until = Instant::now() + WAIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(event) = self.told.recv_timeout(left) else {
                panic!("waited {WAIT:?} for {what}, and was told {:?}", self.kept)
            };
            if so(&event) {
                return event;
            }
            self.kept.push(event);
        }
    }

    pub(crate) fn until_landed(&mut self, of: LegKey) {
        self.until(
            "a leg lands",
            |event| matches!(event, MoverEvent::Landed { key, layers: LAYERS, of: LAYERS, .. } if *key == of),
        );
    }

    /// The end of a leg that goes from here.
    pub(crate) fn end(&mut self, of: LegKey) -> MoverEvent {
        self.until("the end of a leg", |event| match event {
            MoverEvent::LocalDone { key, .. }
            | MoverEvent::Failed { key, .. }
            | MoverEvent::Fenced { key, .. } => *key == of,
            MoverEvent::Landed { .. } | MoverEvent::PeerLost { .. } => false,
        })
    }

    pub(crate) fn failed(&mut self, of: LegKey) -> String {
        match self.end(of) {
            MoverEvent::Failed { reason, .. } => reason,
            event => panic!("{event:?}"),
        }
    }

    pub(crate) fn done(&mut self, of: LegKey) {
        let end = self.end(of);
        assert!(matches!(end, MoverEvent::LocalDone { .. }), "{end:?}");
    }

    pub(crate) fn fenced(&mut self, of: LegKey) {
        let end = self.end(of);
        assert!(matches!(end, MoverEvent::Fenced { .. }), "{end:?}");
    }

    pub(crate) fn lost(&mut self, machine: MachineId) {
        self.until("a machine is lost", |event| *event == MoverEvent::PeerLost { machine });
    }

    /// Waits until no slot is in use: nothing tells of one that nobody waits for.
    pub(crate) fn until_free(&self) {
        let until = Instant::now() + WAIT;
        while self.mover.slots_in_use() > 0 {
            assert!(Instant::now() < until, "{} slots are in use after {WAIT:?}", self.mover.slots_in_use());
            std::thread::yield_now();
        }
    }

    /// Closes it. What it was told and nobody has asked for.
    pub(crate) fn finish(self) -> Vec<MoverEvent> {
        let Self { mover, told, mut kept, .. } = self;
        drop(mover);
        kept.extend(told.try_iter());
        kept.retain(|event| !matches!(event, MoverEvent::Landed { .. }));
        kept
    }

    /// Where the bytes of a token lie: of both planes.
    fn places(&self, table: &[BlockId], layer: u16, position: u32) -> [(usize, usize); 2] {
        let layout = &self.pool.shape().layout;
        let block = table[(position / u32::from(layout.block_tokens)) as usize];
        let token_bytes = layout.row_bytes() * u32::from(HEADS);
        let within = position % u32::from(layout.block_tokens) * token_bytes;
        [0, 1].map(|plane| {
            let offset =
                u32::from(layer) * layout.layer_block_bytes() + plane * layout.plane_block_bytes() + within;
            (self.pool.shape().locate(block, offset).unwrap() as usize, token_bytes as usize)
        })
    }

    /// Computes a layer: its bytes follow from seed, layer and position.
    pub(crate) fn fill(&self, table: &[BlockId], layer: u16, tokens: u32, seed: u64) {
        let base = self.pool.host_base().unwrap();
        for position in 0..tokens {
            for (plane, (at, len)) in self.places(table, layer, position).into_iter().enumerate() {
                for byte in 0..len {
                    // SAFETY: the place is in the pool, and this thread is the only one that uses the block now.
                    unsafe { base.add(at + byte).write(value(seed, layer, position, plane, byte)) };
                }
            }
        }
    }

    /// The first position of a layer that is not as computed.
    pub(crate) fn wrong(&self, table: &[BlockId], layer: u16, tokens: u32, seed: u64) -> Option<u32> {
        let base = self.pool.host_base().unwrap();
        (0..tokens).find(|&position| {
            let places = self.places(table, layer, position).into_iter().enumerate();
            places.into_iter().any(|(plane, (at, len))| {
                (0..len).any(|byte| {
                    // SAFETY: the place is in the pool, and what writes it has landed.
                    let found = unsafe { base.add(at + byte).read() };
                    found != value(seed, layer, position, plane, byte)
                })
            })
        })
    }

    pub(crate) fn fill_all(&self, table: &[BlockId], tokens: u32, seed: u64) {
        (0..LAYERS).for_each(|layer| self.fill(table, layer, tokens, seed));
    }

    pub(crate) fn verify(&self, table: &[BlockId], tokens: u32, seed: u64) {
        for layer in 0..LAYERS {
            assert_eq!(self.wrong(table, layer, tokens, seed), None, "layer {layer} of seed {seed}");
        }
    }
}

fn value(seed: u64, layer: u16, position: u32, plane: usize, byte: usize) -> u8 {
    let mut word = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(u64::from(layer) << 40 | u64::from(position) << 16 | (plane << 12 | byte) as u64);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (word >> 56) as u8 | 1
}

/// This test binary again, as another process that does as it is told.
pub(crate) struct Other {
    process: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

const CHILD: &str = "SPLITCORE_MOVER_CHILD";

/// What a child is told, and says: words and values.
pub(crate) type Words = BTreeMap<String, String>;

pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

impl Other {
    pub(crate) fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "killed::the_other_process_does_as_it_is_told",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Self { process, input, output }
    }

    pub(crate) fn say(&mut self, words: &Words) {
        writeln!(self.input, "{}", serde_json::to_string(words).unwrap()).unwrap();
    }

    /// What it says next. It ends with its input, so that this does not wait for ever.
    pub(crate) fn hear(&mut self) -> Words {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the other process has ended");
            // The harness says things of its own; the child's begin with a mark.
            if let Some((_, words)) = line.split_once('@') {
                return serde_json::from_str(words).unwrap();
            }
        }
    }

    /// It stands still, and is there.
    pub(crate) fn stop(&self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-STOP", &id]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a child: what it is told next; `None` when its parent is gone.
pub(crate) fn told() -> Option<Words> {
    let mut line = String::new();
    let count = std::io::stdin().lock().read_line(&mut line).unwrap();
    (count > 0).then(|| serde_json::from_str(&line).unwrap())
}

/// In a child: says something.
pub(crate) fn tell(words: &Words) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "\n@{}", serde_json::to_string(words).unwrap()).unwrap();
    output.flush().unwrap();
}
