//! The two processes of a measurement, and the pools between them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use splitcore_core::kv::{
    Arrangement, BlockId, Dtype, KvLayout, KvRange, Planes, PoolShape, Shard, TokenOrder, Values,
};
use splitcore_transport::{
    Backend, Completion, ConnectOptions, Endpoint, Grant, HandshakeError, Incarnation, Link, MemoryError,
    Pool, TransferError, TransferKey, connect,
};

/// The most that anything may take: a measurement that hangs ends with what it waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const MODEL: &str = "bench";

/// What can go wrong with a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The transport.
    #[error("{0}")]
    Transfer(#[from] TransferError),
    /// The connection.
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    /// Memory.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The child process, or a pipe to it.
    #[error("the receiving process: {0}")]
    Child(String),
    /// Whoever asked wants no more.
    #[error("stopped")]
    Stopped,
    /// A thread, or a socket of the ceiling.
    #[error("the system: {0}")]
    System(std::io::Error),
}

/// What the parent asks of the child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Begin: a pool of this shape, for so many transfers at once.
    Listen { model: String, shape: PoolShape, slots: u32 },
    /// Open transfers for a writer, each over these blocks.
    Open { writer: Incarnation, count: u32, blocks: Vec<BlockId>, layer_bytes: u64 },
    /// Say when the last layer of each of these was seen, one after the other; then release them.
    Await { keys: Vec<TransferKey> },
    /// Say when each layer of this was seen, by a thread that sleeps until it is.
    Watch { key: TransferKey },
}

/// What the child answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Listening(Box<Endpoint>),
    Opened(Vec<Grant>),
    Seen { ns: Vec<u64> },
    Failed(String),
}

/// Now, by the clock that all processes of this host share.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// The child, and the pipes to it. Killed when dropped.
pub(crate) struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(mut command: Command) -> Result<Self, BenchError> {
        let fault = |error: std::io::Error| BenchError::Child(error.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(fault)?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from)) = pipes else {
            return Err(BenchError::Child("it has no pipes".to_owned()));
        };
        Ok(Self { child, to: Some(to), from: BufReader::new(from) })
    }

    pub(crate) fn say(&mut self, ask: &Ask) -> Result<(), BenchError> {
        let mut line = serde_json::to_string(ask).map_err(|error| BenchError::Child(error.to_string()))?;
        line.push('\n');
        let to = self.to.as_mut().ok_or_else(|| BenchError::Child("its input is closed".to_owned()))?;
        to.write_all(line.as_bytes())
            .and_then(|()| to.flush())
            .map_err(|error| BenchError::Child(error.to_string()))
    }

    pub(crate) fn hear(&mut self) -> Result<Answer, BenchError> {
        let mut line = String::new();
        let count = self.from.read_line(&mut line).map_err(|error| BenchError::Child(error.to_string()))?;
        if count == 0 {
            return Err(BenchError::Child("it ended early".to_owned()));
        }
        match serde_json::from_str(&line).map_err(|error| BenchError::Child(error.to_string()))? {
            Answer::Failed(why) => Err(BenchError::Child(why)),
            answer => Ok(answer),
        }
    }

    pub(crate) fn seen(&mut self) -> Result<Vec<u64>, BenchError> {
        match self.hear()? {
            Answer::Seen { ns } => Ok(ns),
            other => Err(BenchError::Child(format!("an answer out of turn: {other:?}"))),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input is the end of its life; a child that does not see it is helped.
        self.to = None;
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A layout whose blocks have `block_bytes` in each of `layers` layers.
pub(crate) fn layout(layers: u16, block_bytes: u32) -> KvLayout {
    // 4,096 bytes a token: eight heads of 128 half-precision elements, K and V; smaller blocks have smaller heads.
    let (head_dim, block_tokens) =
        if block_bytes >= 4096 { (128, block_bytes / 4096) } else { (block_bytes / 32, 1) };
    KvLayout {
        layers,
        values: Values::Heads { heads: 8, head_dim: head_dim as u16 },
        dtype: Dtype::F16,
        block_tokens: block_tokens as u16,
        order: TokenOrder::Hnd,
        planes: Planes::Together,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    }
}

/// Blocks in an order in which no two neighbours follow each other.
pub(crate) fn scattered(blocks: u32, seed: u128) -> Vec<BlockId> {
    let mut order: Vec<BlockId> = (0..blocks).map(BlockId).collect();
    let mut draw = Pcg64Mcg::new(seed);
    for last in (1..order.len()).rev() {
        let at = (draw.next_u64() % (last as u64 + 1)) as usize;
        order.swap(last, at);
    }
    order
}

/// The sending side, connected to a child.
pub(crate) struct Pair {
    pub(crate) peer: Peer,
    pub(crate) link: Arc<dyn Link>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) me: Incarnation,
    pub(crate) receiver: Incarnation,
    pub(crate) shape: PoolShape,
}

impl Pair {
    pub(crate) fn new(
        shape: PoolShape,
        slots: u32,
        backend: Backend,
        child: &dyn Fn() -> Command,
    ) -> Result<Self, BenchError> {
        let mut peer = Peer::start(child())?;
        peer.say(&Ask::Listen { model: MODEL.to_owned(), shape, slots })?;
        let Answer::Listening(endpoint) = peer.hear()? else {
            return Err(BenchError::Child("it does not listen".to_owned()));
        };
        let me = Incarnation::random()?;
        let pool = Arc::new(Pool::shared(shape)?);
        let options = ConnectOptions { backend: Some(backend), ..ConnectOptions::new(MODEL) };
        let link = connect(&pool, me, &endpoint, &options)?;
        Ok(Self { peer, link, pool, me, receiver: endpoint.incarnation, shape })
    }

    /// Opens transfers of all these blocks and begins them.
    pub(crate) fn begin(&mut self, count: u32, blocks: &[BlockId]) -> Result<Vec<Grant>, BenchError> {
        let layer_bytes = blocks.len() as u64 * u64::from(self.shape.layout.layer_block_bytes());
        self.peer.say(&Ask::Open { writer: self.me, count, blocks: blocks.to_vec(), layer_bytes })?;
        let Answer::Opened(grants) = self.peer.hear()? else {
            return Err(BenchError::Child("it grants nothing".to_owned()));
        };
        Ok(grants)
    }

    /// The ranges of one layer, block by block from `from` to `to`.
    pub(crate) fn ranges(&self, layer: u16, from: &[BlockId], to: &[BlockId]) -> Vec<KvRange> {
        let bytes = self.shape.layout.layer_block_bytes();
        let offset = u32::from(layer) * bytes;
        let range = |(&from, &to): (&BlockId, &BlockId)| KvRange {
            from,
            from_offset: offset,
            to,
            to_offset: offset,
            bytes,
        };
        from.iter().zip(to).map(range).collect()
    }

    /// Waits for the end of so many transfers; gives when each was heard of.
    pub(crate) fn ends(&self, count: usize) -> Result<Vec<u64>, BenchError> {
        let until = Instant::now() + PATIENCE;
        let (mut ended, mut times) = (Vec::new(), Vec::with_capacity(count));
        while times.len() < count {
            if Instant::now() > until {
                return Err(BenchError::Child(format!("{} of {count} transfers ended", times.len())));
            }
            self.link.wait(Duration::from_millis(100));
            self.link.poll(&mut ended);
            for completion in ended.drain(..) {
                if let Completion::Failed(_, error) = completion {
                    return Err(error.into());
                }
                times.push(now_ns());
            }
        }
        Ok(times)
    }
}
