//! A stream whose client must take what it is sent: the next answer is not made before the last one is taken, and one
//! that is not taken waits no longer than a limit.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

/// A client takes at least so much within the limit, or all that waits.
const STEP_BYTES: usize = 16 << 10;
/// How long a connection that ends goes on reading what its client still sends: were it closed at once, the system
/// would take the last answer back.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that are read so.
const LINGER_BYTES: usize = 8 << 20;

/// Whether something that was written waits for the client.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    waits: AtomicBool,
    news: Notify,
}

impl Taken {
    /// Returns once the client has taken, or the system has, all that was written.
    pub(crate) async fn all(&self) {
        while self.waits.load(Ordering::Relaxed) {
            self.news.notified().await;
        }
    }

    fn set(&self, waits: bool) {
        if self.waits.swap(waits, Ordering::Relaxed) && !waits {
            self.news.notify_one();
        }
    }
}

/// What is left to do of a stream that ends.
enum End {
    /// Nothing is sent any more.
    Close,
    /// What the client still sends is dropped.
    Drop { bytes: usize, timer: Option<Pin<Box<Sleep>>> },
}

/// The stream.
pub(crate) struct Timed<S> {
    stream: S,
    limit: Duration,
    taken: Arc<Taken>,
    /// Runs while something waits for the client.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes that it has taken since the timer began.
    since: usize,
    end: End,
}

impl<S> Timed<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, taken: Arc::default(), timer: None, since: 0, end: End::Close }
    }

    /// Tells whether something waits for the client.
    pub(crate) fn taken(&self) -> Arc<Taken> {
        Arc::clone(&self.taken)
    }

    /// What a write came to, unless it has waited too long.
    fn within(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(done) = done {
            self.since += *done.as_ref().unwrap_or(&0);
            if self.since >= STEP_BYTES {
                self.timer = None;
            }
            return Poll::Ready(done);
        }
        self.wait(context)
    }

    /// Something waits for the client: until there is news, or for too long.
    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.taken.set(true);
        if self.timer.is_none() {
            self.since = 0;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(timer.as_mut().poll(context));
        let seconds = limit.as_secs_f64();
        let what = format!("write_timeout_s: the client took too little of its answer in {seconds} seconds");
        tracing::debug!("{what}");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.within(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The writer comes here once it has written all that it has.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        if done.is_pending() {
            return self.wait(context);
        }
        self.timer = None;
        self.taken.set(false);
        done
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let End::Close = self.end {
            let done = Pin::new(&mut self.stream).poll_shutdown(context);
            if done.is_pending() {
                return self.wait(context);
            }
            ready!(done)?;
            self.end = End::Drop { bytes: 0, timer: None };
        }
        let Self { stream, end, .. } = &mut *self;
        let End::Drop { bytes, timer } = end else { return Poll::Ready(Ok(())) };
        loop {
            let mut rest = [0; 4096];
            let mut rest = ReadBuf::new(&mut rest);
            match Pin::new(&mut *stream).poll_read(context, &mut rest) {
                Poll::Ready(Ok(())) if !rest.filled().is_empty() && *bytes < LINGER_BYTES => {
                    *bytes += rest.filled().len();
                    timer.get_or_insert_with(|| Box::pin(sleep(LINGER)));
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                // Who has sent nothing that was not read sends nothing now either.
                Poll::Pending => {
                    let Some(timer) = timer else { return Poll::Ready(Ok(())) };
                    return timer.as_mut().poll(context).map(Ok);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    /// Writes so much to a client that takes `step` bytes each millisecond.
    async fn write(bytes: usize, step: usize) -> io::Result<()> {
        let (ours, mut theirs) = duplex(64);
        let reader = tokio::spawn(async move {
            let mut taken = vec![0; step];
            while theirs.read(&mut taken).await.is_ok_and(|read| read > 0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let mut stream = Timed::new(ours, LIMIT);
        let written = match stream.write_all(&vec![0; bytes]).await {
            Ok(()) => stream.flush().await,
            Err(error) => Err(error),
        };
        reader.abort();
        written
    }

    #[tokio::test]
    async fn who_takes_its_answer_in_drops_is_cut_off() {
        let error = write(1 << 20, 16).await.expect_err("it would take minutes");
        assert!(error.to_string().starts_with("write_timeout_s: "), "{error}");
    }

    #[tokio::test]
    async fn an_answer_counts_as_taken_when_all_of_it_is() {
        let (ours, mut theirs) = duplex(64);
        let mut stream = Timed::new(ours, Duration::from_secs(60));
        let taken = stream.taken();
        taken.all().await;
        let writer = tokio::spawn(async move {
            stream.write_all(&[0; 100]).await?;
            stream.flush().await
        });
        while !taken.waits.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
        let (all, read) = tokio::join!(taken.all(), async {
            let mut taken = [0; 100];
            theirs.read_exact(&mut taken).await
        });
        assert_eq!((all, read.is_ok_and(|read| read == 100)), ((), true));
        assert!(writer.await.is_ok_and(|written| written.is_ok()));
    }
}
