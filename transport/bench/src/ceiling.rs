//! What the machine can do at best: one thread that copies the same blocks, or one plain socket with as many bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use splitcore_core::kv::{BlockId, PoolShape};
use splitcore_transport::{Backend, Mapping};

use crate::setting::{BenchError, PATIENCE, now_ns};

/// Memory to copy from, and memory or a socket to copy to.
pub(crate) enum Ceiling {
    Memory {
        shape: PoolShape,
        from: Mapping,
        to: Mapping,
    },
    Socket {
        shape: PoolShape,
        from: Mapping,
        stream: TcpStream,
        sink: Option<JoinHandle<std::io::Result<()>>>,
    },
}

impl Ceiling {
    pub(crate) fn new(backend: Backend, shape: PoolShape) -> Result<Self, BenchError> {
        let bytes = shape.bytes() as usize;
        let from = Mapping::create("bench-from", bytes)?;
        if backend != Backend::Tcp {
            return Ok(Self::Memory { shape, from, to: Mapping::create("bench-to", bytes)? });
        }
        let to = Mapping::create("bench-to", bytes)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(BenchError::System)?;
        let address = listener.local_addr().map_err(BenchError::System)?;
        let block = shape.layout.layer_block_bytes() as usize;
        let sink = std::thread::spawn(move || sink(&listener, &to, block));
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(BenchError::System)?;
        stream.set_nodelay(true).map_err(BenchError::System)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(BenchError::System)?;
        Ok(Self::Socket { shape, from, stream, sink: Some(sink) })
    }

    /// Copies all blocks of all layers; gives how long it took.
    pub(crate) fn copy(&mut self, from: &[BlockId], to: &[BlockId]) -> Result<u64, BenchError> {
        match self {
            Self::Memory { shape, from: source, to: sink } => {
                let start = now_ns();
                each(shape, from, to, |at, into, bytes| {
                    // SAFETY: `locate` gives places inside pools of this shape, and the two mappings are apart.
                    unsafe {
                        let (at, into) = (source.base().add(at), sink.base().add(into));
                        std::ptr::copy_nonoverlapping(at.as_ptr(), into.as_ptr(), bytes);
                    }
                    Ok(())
                })
                .map_err(BenchError::System)?;
                Ok(now_ns() - start)
            }
            Self::Socket { shape, from: source, stream, sink: _ } => {
                let start = now_ns();
                each(shape, from, to, |at, _, bytes| {
                    // SAFETY: as above, and nobody writes this memory.
                    let block = unsafe { std::slice::from_raw_parts(source.base().add(at).as_ptr(), bytes) };
                    stream.write_all(block)
                })
                .map_err(BenchError::System)?;
                stream.read_exact(&mut [0]).map_err(BenchError::System)?;
                Ok(now_ns() - start)
            }
        }
    }
}

fn each(
    shape: &PoolShape,
    from: &[BlockId],
    to: &[BlockId],
    mut copy: impl FnMut(usize, usize, usize) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let bytes = shape.layout.layer_block_bytes();
    for layer in 0..u32::from(shape.layout.layers) {
        for (&from, &to) in from.iter().zip(to) {
            if let (Some(from), Some(to)) =
                (shape.locate(from, layer * bytes), shape.locate(to, layer * bytes))
            {
                copy(from as usize, to as usize, bytes as usize)?;
            }
        }
    }
    Ok(())
}

/// Reads as many bytes as the memory has, over and over, and says so with one byte each time.
fn sink(listener: &TcpListener, to: &Mapping, block: usize) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    // SAFETY: the mapping is this thread's alone.
    let memory = unsafe { std::slice::from_raw_parts_mut(to.base().as_ptr(), to.len()) };
    loop {
        for block in memory.chunks_mut(block) {
            if let Err(error) = stream.read_exact(block) {
                let ended = error.kind() == std::io::ErrorKind::UnexpectedEof;
                return if ended { Ok(()) } else { Err(error) };
            }
        }
        stream.write_all(&[1])?;
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        if let Self::Socket { stream, sink, .. } = self {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            if let Some(sink) = sink.take() {
                let _ = sink.join();
            }
        }
    }
}
