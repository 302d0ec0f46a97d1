//! Long work on threads of its own, while the calling thread looks after Python.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

/// How often Ctrl-C is looked for while there is nothing to tell.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Does `work` on a thread of its own, and hears on this one of Ctrl-C and of what the work tells: done and expected. The
/// work goes on while its telling is answered with true.
///
/// Returns what the work did, none if it panicked; and what stopped it: Ctrl-C, or what the progress callback raised.
pub(crate) fn watched<T: Send>(
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&(dyn Fn(u64, u64) -> bool + Sync)) -> T + Send,
) -> (Option<T>, Option<PyErr>) {
    let (tell, told) = channel();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let worker = scope.spawn(move || {
            work(&|done, expected| tell.send((done, expected)).is_ok() && !stop.load(Ordering::Relaxed))
        });
        let mut stopped = None;
        loop {
            let latest = match told.recv_timeout(LOOK_INTERVAL) {
                // Several may have come since: the last says it all.
                Ok(first) => Some(told.try_iter().last().unwrap_or(first)),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if stopped.is_some() {
                continue;
            }
            let go_on = Python::attach(|py| {
                py.check_signals()?;
                match (latest, progress) {
                    (Some(latest), Some(call)) => call.call1(py, latest).map(drop),
                    _ => Ok(()),
                }
            });
            if let Err(error) = go_on {
                stop.store(true, Ordering::Relaxed);
                stopped = Some(error);
            }
        }
        (worker.join().ok(), stopped)
    })
}
