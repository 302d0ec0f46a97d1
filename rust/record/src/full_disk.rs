//! Disks that are full, or hang.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, Level};
use splitcore_core::event::ClusterEvent;
use splitcore_core::time::Time;

use crate::disk::{Disk, System};
use crate::{Ended, LogEnd, Options, Recorder, replay};

/// Has so many bytes left; a write takes what there is, and then fails. What is cut or deleted is free again.
struct Small {
    left: u64,
}

impl Disk for Small {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        System.create(path)
    }

    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let fits = self.left.min(bytes.len() as u64);
        self.left -= fits;
        file.write_all_at(&bytes[..fits as usize], offset)?;
        if fits < bytes.len() as u64 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn truncate(&mut self, file: &File, length: u64) -> io::Result<()> {
        self.left += file.metadata()?.len().saturating_sub(length);
        System.truncate(file, length)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.left += fs::metadata(path)?.len();
        System.remove(path)
    }
}

/// Small, and it may have no room for a folder either.
struct Full {
    small: Small,
    folders: bool,
    kind: io::ErrorKind,
}

impl Disk for Full {
    fn create_folder(&mut self, path: &Path) -> io::Result<()> {
        if self.folders { System.create_folder(path) } else { Err(self.kind.into()) }
    }

    fn create(&mut self, path: &Path) -> io::Result<File> {
        self.small.create(path)
    }

    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.small.write(file, bytes, offset).map_err(|_| self.kind.into())
    }
}

/// Its first write of records waits until it is let go.
struct Hanging {
    writes: u32,
    go: Receiver<()>,
}

impl Disk for Hanging {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        System.create(path)
    }

    fn write(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.writes += 1;
        if self.writes == 2 {
            let _ = self.go.recv();
        }
        System.write(file, bytes, offset)
    }
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("splitcore-record-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

fn cluster() -> Cluster {
    Cluster::new(ClusterConfig { level: Level::External, ..ClusterConfig::default() }).unwrap()
}

fn tell(recorder: &mut Recorder<Cluster>, cluster: &mut Cluster, number: u64) {
    let (now, event, mut actions) = (Time::from_ns(number), ClusterEvent::Tick, Vec::new());
    let result = cluster.handle(now, &event, &mut actions);
    recorder.record(now, &event, &result, &actions, cluster);
}

/// What a hook has been told.
fn hook() -> (Arc<Mutex<Vec<Ended>>>, crate::Hook) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&told);
    (told, Box::new(move |why: &Ended| theirs.lock().unwrap().push(why.clone())))
}

/// Records on a disk with so much room until the log ends.
fn fill(dir: &Path, left: u64, segment_bytes: u64) -> Ended {
    let (told, on_end) = hook();
    let mut cluster = cluster();
    let options = Options { segment_bytes, queue_bytes: 200, on_end, ..Options::default() };
    let mut recorder = Recorder::create_on(Small { left }, dir, "c", &cluster, options).unwrap();
    for number in 0..100_000 {
        tell(&mut recorder, &mut cluster, number);
        if recorder.ended().is_some() {
            break;
        }
    }
    tell(&mut recorder, &mut cluster, 100_000);
    let ended = recorder.ended().expect("the disk is full");
    drop(recorder);
    assert_eq!(*told.lock().unwrap(), std::slice::from_ref(&ended), "said once");
    ended
}

#[test]
fn a_full_disk_ends_the_log_with_a_word_and_nothing_else() {
    for (left, segment_bytes) in [(6000, u64::MAX), (6001, u64::MAX), (20_000, 1), (20_001, 1), (9000, 1000)]
    {
        let dir = folder(&format!("full-{left}"));
        let ended = fill(&dir, left, segment_bytes);
        let Ended::Disk { path, what } = &ended else { panic!("{ended}") };
        assert!(path.starts_with(&dir) && what.contains("no storage space"), "{ended}");
        let log = replay(&dir).unwrap().logs.remove(0);
        assert!(log.difference.is_none() && log.events > 0, "{log:?}");
        assert_eq!(log.end, LogEnd::Early(ended.to_string()));
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn a_disk_without_room_for_the_start_ends_the_log_before_it_begins() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
        for (left, folders) in [(0, true), (100, true), (100, false)] {
            let dir = folder(&format!("start-{left}-{folders}-{}", kind as u32));
            let (told, on_end) = hook();
            let mut cluster = cluster();
            let disk = Full { small: Small { left }, folders, kind };
            let options = Options { on_end, ..Options::default() };
            let mut recorder = Recorder::create_on(disk, &dir, "c", &cluster, options).unwrap();
            let ended = recorder.ended().expect("there is no room");
            assert_eq!(*told.lock().unwrap(), std::slice::from_ref(&ended), "said once");
            assert!(ended.to_string().contains(": cannot be written: "), "{ended}");
            tell(&mut recorder, &mut cluster, 1);
            drop(recorder);
            assert_eq!(fs::read_dir(dir.join("c")).map_or(0, Iterator::count), 0, "nothing is left behind");
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

#[test]
fn a_log_that_may_not_be_written_is_an_error() {
    let dir = folder("may-not");
    let disk = Full { small: Small { left: 0 }, folders: false, kind: io::ErrorKind::PermissionDenied };
    let begun = Recorder::create_on(disk, &dir, "c", &cluster(), Options::default());
    let error = begun.err().expect("it may not").to_string();
    assert!(error.contains("/c: the log cannot be begun: "), "{error}");
}

#[test]
fn a_disk_that_hangs_ends_the_log_and_holds_nobody_up() {
    let dir = folder("hangs");
    let (told, on_end) = hook();
    let (let_go, go): (Sender<()>, _) = channel();
    let mut cluster = cluster();
    let options = Options { queue_bytes: 300, wait: Duration::from_millis(20), on_end, ..Options::default() };
    let disk = Hanging { writes: 0, go };
    let mut recorder = Recorder::create_on(disk, &dir, "c", &cluster, options).unwrap();
    for number in 0..1000 {
        tell(&mut recorder, &mut cluster, number);
    }
    let ended = recorder.ended().expect("the disk hangs");
    assert!(matches!(ended, Ended::Slow { waited_ms: 20, .. }), "{ended}");
    drop(recorder);
    assert_eq!(*told.lock().unwrap(), [ended]);
    assert!(replay(&dir).unwrap().agrees());
    drop(let_go);
    let _ = fs::remove_dir_all(&dir);
}
