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

/// Tunes a socket: no delay, and a dead host is noticed. Its buffers are the kernel's to size, which it does by what the
/// line takes; a size that is set is bounded much lower on most hosts. `stall_limit` is how long a living peer may
/// take nothing, which the kernel is given a second more for, so that whoever waits says it first.
fn tune(stream: &TcpStream, stall_limit: Duration) -> std::io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    let limit = stall_limit.saturating_add(Duration::from_secs(1)).as_millis();
    sockopt::set_tcp_user_timeout(stream, u32::try_from(limit).unwrap_or(u32::MAX))?;
    Ok(())
}
