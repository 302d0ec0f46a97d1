//! One ordered stream per connection, between hosts or on one.
//!
//! - [`frame`]: what goes over it.
//! - [`send`], [`lane`]: the sender; a queue and a thread for each connection, `sendmsg` straight from the pool.
//! - [`receive`], [`intake`]: the receiver; a thread for each connection, `recvmsg` straight into the pool.
//!
//! Only the receiver's own threads write its pool, each read under the transfer's hold, so a stop fences at once.

pub mod frame;
pub mod fuzz;
mod intake;
mod lane;
mod receive;
mod send;

use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

pub(crate) use receive::serve;
pub(crate) use send::connect;

/// Bytes that the kernel may hold for a connection, either way: what a long fast line has under way.
const FAR_BUFFER: usize = 4 << 20;

/// As much on one host, where nothing is under way and what stays in the caches is copied out of them.
const NEAR_BUFFER: usize = 512 << 10;

/// Tunes a socket: no delay, large buffers, and a dead host is noticed. `stall_limit` is how long a living peer may
/// take nothing, which the kernel is given a second more for, so that whoever waits says it first.
fn tune(stream: &TcpStream, stall_limit: Duration) -> std::io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    let buffer = if stream.peer_addr()?.ip().is_loopback() { NEAR_BUFFER } else { FAR_BUFFER };
    sockopt::set_socket_send_buffer_size(stream, buffer)?;
    sockopt::set_socket_recv_buffer_size(stream, buffer)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    let limit = stall_limit.saturating_add(Duration::from_secs(1)).as_millis();
    sockopt::set_tcp_user_timeout(stream, u32::try_from(limit).unwrap_or(u32::MAX))?;
    Ok(())
}
