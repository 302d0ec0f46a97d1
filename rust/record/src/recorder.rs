//! The writing half. Records are encoded by whoever drives the machine, and written by a thread, so no event waits for
//! the disk unless very many wait already.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use splitcore_core::error::{Applied, EventError};
use splitcore_core::time::Time;

use crate::disk::{Disk, System};
use crate::format::{Answer, Kind, Written, append};
use crate::writer::Writer;
use crate::{CreateError, Ended, Recorded};

/// Told why a log ends before its recorder does.
pub type Hook = Box<dyn FnOnce(&Ended) + Send>;

/// How a log is written.
pub struct Options {
    /// Bytes of records after which a next segment begins.
    pub segment_bytes: u64,
    /// Segments of a run that are kept, the newest; the older ones are deleted. `None`: all.
    pub keep: Option<u32>,
    /// Bytes that may wait for the disk.
    pub queue_bytes: usize,
    /// How long the driver waits where so many do; then the log ends.
    pub wait: Duration,
    /// Told once, if the log ends before its recorder does. Called on either thread.
    pub on_end: Hook,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            keep: None,
            queue_bytes: 16 << 20,
            wait: Duration::from_secs(1),
            on_end: Box::new(|_| {}),
        }
    }
}

/// What waits for the disk.
enum Item<M> {
    Records(Vec<u8>),
    Turn { first: u64, machine: Box<M> },
}

struct Queue<M> {
    items: VecDeque<Item<M>>,
    bytes: usize,
    closed: bool,
    ended: Option<Ended>,
    on_end: Option<Hook>,
}

struct Shared<M> {
    queue: Mutex<Queue<M>>,
    /// There is something to write, or nothing more will come.
    filled: Condvar,
    /// What waited has been taken.
    taken: Condvar,
}

impl<M> Shared<M> {
    fn lock(&self) -> MutexGuard<'_, Queue<M>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log ends before its recorder; said once.
    fn end(&self, why: &Ended) {
        let hook = {
            let mut queue = self.lock();
            queue.items.clear();
            queue.bytes = 0;
            if queue.ended.is_some() {
                return;
            }
            queue.ended = Some(why.clone());
            queue.on_end.take()
        };
        self.taken.notify_all();
        self.filled.notify_all();
        if let Some(hook) = hook {
            hook(why);
        }
    }
}

/// Writes down what happens to one state machine. Dropped, it writes what waits and says in the log that it is whole.
///
/// What was written outlives the process, killed or not; it is not forced onto the disk, so a host that loses power
/// may lose the end of it. A disk that is full, or slower than [`Options::wait`] allows, ends the log: it says so in
/// its last segment and once to [`Options::on_end`], and whatever is recorded goes on.
pub struct Recorder<M: Recorded> {
    shared: Arc<Shared<M>>,
    thread: Option<JoinHandle<()>>,
    folder: PathBuf,
    /// Where a record is encoded.
    scratch: Vec<u8>,
    segment_bytes: u64,
    /// Bytes of records in this segment.
    used: u64,
    /// The next event's number.
    next: u64,
    queue_bytes: usize,
    wait: Duration,
    /// Nothing more is written.
    over: bool,
}

impl<M: Recorded> Recorder<M> {
    /// Begins a log of `machine` as it is now, beside those that are there under the name already. On a disk without
    /// room for it the log has ended before it begins, as one does whose disk fills up later.
    ///
    /// # Errors
    /// [`CreateError`] when the folder, the first file or the thread cannot be made for any other reason.
    pub fn create(dir: &Path, name: &str, machine: &M, options: Options) -> Result<Self, CreateError> {
        Self::create_on(System, dir, name, machine, options)
    }

    pub(crate) fn create_on(
        disk: impl Disk,
        dir: &Path,
        name: &str,
        machine: &M,
        options: Options,
    ) -> Result<Self, CreateError> {
        let Options { segment_bytes, keep, queue_bytes, wait, on_end } = options;
        let folder = dir.join(crate::folder::escape(name));
        let queue =
            Queue { items: VecDeque::new(), bytes: 0, closed: false, ended: None, on_end: Some(on_end) };
        let shared =
            Arc::new(Shared { queue: Mutex::new(queue), filled: Condvar::new(), taken: Condvar::new() });
        let thread = match Writer::create(disk, dir, name, keep, machine) {
            Ok(writer) => {
                let theirs = Arc::clone(&shared);
                let thread = std::thread::Builder::new()
                    .name("splitcore-record".to_owned())
                    .spawn(move || write_all(&theirs, writer));
                Some(thread.map_err(|source| CreateError { path: folder.clone(), source })?)
            }
            Err(error) if error.is_full() => {
                shared.end(&Ended::Disk { path: error.path, what: error.source.to_string() });
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            shared,
            over: thread.is_none(),
            thread,
            folder,
            scratch: Vec::new(),
            segment_bytes,
            used: 0,
            next: 0,
            queue_bytes,
            wait,
        })
    }

    /// Writes down an event that has been given to `machine`, what it answered, and what it wanted done. `machine` is
    /// as it is afterwards; it is copied only when a segment turns.
    pub fn record(
        &mut self,
        now: Time,
        event: &M::Event,
        result: &Result<Applied, EventError>,
        actions: &[M::Action],
        machine: &M,
    ) {
        if self.over {
            return;
        }
        self.scratch.clear();
        let record = Written { now, event, answer: Answer::new(result), actions };
        if let Err(what) = append(&mut self.scratch, Kind::Record, &record) {
            self.over = true;
            self.shared.end(&Ended::Encode { path: self.folder.clone(), what });
            return;
        }
        self.next += 1;
        self.used += self.scratch.len() as u64;
        let turns = self.used >= self.segment_bytes;
        let turn = turns.then(|| Item::Turn { first: self.next, machine: Box::new(machine.clone()) });
        if turns {
            self.used = 0;
        }
        self.push(turn);
    }

    fn push(&mut self, turn: Option<Item<M>>) {
        let (limit, more) = (self.queue_bytes, self.scratch.len());
        let is_full =
            |queue: &mut Queue<M>| queue.ended.is_none() && queue.bytes > 0 && queue.bytes + more > limit;
        let waited = self.shared.taken.wait_timeout_while(self.shared.lock(), self.wait, is_full);
        let (mut queue, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if queue.ended.is_some() {
            self.over = true;
            return;
        }
        if waited.timed_out() {
            let queued = queue.bytes;
            drop(queue);
            self.over = true;
            let waited_ms = u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX);
            self.shared.end(&Ended::Slow { path: self.folder.clone(), queued, waited_ms });
            return;
        }
        let idle = queue.items.is_empty();
        if let Some(Item::Records(bytes)) = queue.items.back_mut() {
            bytes.extend_from_slice(&self.scratch);
        } else {
            queue.items.push_back(Item::Records(self.scratch.clone()));
        }
        queue.items.extend(turn);
        queue.bytes += more;
        drop(queue);
        if idle {
            self.shared.filled.notify_one();
        }
    }

    /// Why the log has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.shared.lock().ended.clone()
    }

    /// Events given to it so far.
    pub fn events(&self) -> u64 {
        self.next
    }
}

impl<M: Recorded> Drop for Recorder<M> {
    fn drop(&mut self) {
        let is_slow = {
            let mut queue = self.shared.lock();
            queue.closed = true;
            matches!(queue.ended, Some(Ended::Slow { .. }))
        };
        self.shared.filled.notify_one();
        // A disk that hangs must not hang whoever is recorded.
        if let Some(thread) = self.thread.take().filter(|_| !is_slow) {
            let _ = thread.join();
        }
    }
}

/// The thread. It takes all that waits at once, so an event never waits for a write of another while there is room.
fn write_all<M: Recorded>(shared: &Shared<M>, mut writer: Writer<impl Disk>) {
    loop {
        let (items, ended) = {
            let idle =
                |queue: &mut Queue<M>| queue.items.is_empty() && !queue.closed && queue.ended.is_none();
            let mut queue =
                shared.filled.wait_while(shared.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            queue.bytes = 0;
            (std::mem::take(&mut queue.items), queue.ended.clone())
        };
        shared.taken.notify_one();
        let written = items.iter().try_for_each(|item| match item {
            Item::Records(bytes) => writer.write(bytes),
            Item::Turn { first, machine } => writer.turn(*first, machine.as_ref()),
        });
        let over = items.is_empty();
        if let Err(why) = written {
            // First into the file: whoever is told may look there.
            let _ = writer.end(Some(&why));
            shared.end(&why);
            return;
        }
        if over {
            if let Err(why) = writer.end(ended.as_ref()) {
                shared.end(&why);
            }
            return;
        }
    }
}
