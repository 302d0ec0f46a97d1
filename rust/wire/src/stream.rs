//! A connection of threads, of either kind, in TLS or not: one thread waits for bytes on the socket, whoever has the
//! [`Stream`] makes sense of them and writes.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::address::Address;
use crate::tls::{Secure, Tls};

/// A socket of either kind.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

macro_rules! each {
    ($socket:expr, $inner:ident => $body:expr) => {
        match $socket {
            Socket::Tcp($inner) => $body,
            Socket::Unix($inner) => $body,
        }
    };
}

impl Socket {
    fn connect(address: &Address, limit: Duration) -> io::Result<Self> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            Address::Tcp(address) => {
                let mut last = io::Error::other("the host has no address");
                for address in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Self::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// How long a read and a write may take.
    pub(crate) fn set_limits(&self, read: Option<Duration>, write: Duration) -> io::Result<()> {
        each!(self, stream => {
            stream.set_read_timeout(read)?;
            stream.set_write_timeout(Some(write))
        })
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        each!(self, stream => stream.read(bytes))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        each!(self, stream => stream.write(bytes))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        each!(self, stream => stream.write_vectored(parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    tls: Option<Secure>,
}

impl Stream {
    /// Connects to one of the addresses of a host, each within `limit`, and begins the handshake where there is one.
    pub(crate) fn connect(
        address: &Address,
        tls: Option<&Tls>,
        limit: Duration,
        write_limit: Duration,
    ) -> io::Result<Self> {
        let mut socket = Socket::connect(address, limit)?;
        socket.set_limits(None, write_limit)?;
        let mut tls = tls.map(Tls::connection).transpose()?;
        if let Some(tls) = &mut tls {
            tls.flush(&mut socket)?;
        }
        Ok(Self { socket, tls })
    }

    /// The socket, for the thread that waits for bytes.
    pub(crate) fn socket(&self) -> io::Result<Socket> {
        self.socket.try_clone()
    }

    /// Gives what the bytes say that have come, in order. Returns whether the other side has ended it.
    pub(crate) fn take(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        match &mut self.tls {
            None => each(bytes),
            Some(tls) => return tls.take(bytes, &mut self.socket, each),
        }
        Ok(false)
    }

    /// Writes all of these.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.socket.write_all(bytes),
            Some(tls) => tls.write_all(bytes, &mut self.socket),
        }
    }

    /// Hangs up, having said so.
    pub(crate) fn end(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.end(&mut self.socket);
        }
        self.shut();
    }

    /// Hangs up without a word.
    pub(crate) fn shut(&self) {
        let _ = each!(&self.socket, stream => stream.shutdown(Shutdown::Both));
    }
}
