//! Worlds that are recorded, small logs, and folders that go away.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of tests: what is missing fails them")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, Level};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, MachineEvent, Role};
use splitcore_core::id::{Attempt, LegKey, MachineId, RequestId};
use splitcore_core::leg::Notice;
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;
use splitcore_record::{Options, Recorded, Recorder};
use splitcore_swarm::setup::Setup;
use splitcore_swarm::world::{Watch, World};

/// A folder that goes with its owner.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("splitcore-record-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The segments under a name, in order.
    pub(crate) fn segments(&self, name: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.join(name)).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn segments_of(segment_bytes: u64) -> Options {
    Options { segment_bytes, ..Options::default() }
}

/// A state machine that a world has, here once more, and its log.
struct Twin<M: Recorded> {
    machine: M,
    recorder: Recorder<M>,
}

impl<M: Recorded> Twin<M> {
    fn tell(&mut self, now: Time, event: &M::Event) -> usize {
        let mut actions = Vec::new();
        let result = self.machine.apply(now, event, &mut actions);
        self.recorder.record(now, event, &result, &actions, &self.machine);
        actions.len()
    }
}

/// Records all that happens in a world: a log for each Cluster and each incarnation of a machine.
pub(crate) struct Recording {
    dir: PathBuf,
    segment_bytes: u64,
    clusters: BTreeMap<usize, Twin<Cluster>>,
    machines: BTreeMap<MachineId, Twin<Machine>>,
    /// Events and actions by the name of the log.
    pub(crate) told: BTreeMap<String, (u64, u64)>,
}

impl Recording {
    fn create<M: Recorded>(&self, name: &str, machine: &M) -> Twin<M> {
        let recorder = Recorder::create(&self.dir, name, machine, segments_of(self.segment_bytes)).unwrap();
        Twin { machine: machine.clone(), recorder }
    }

    fn count(&mut self, name: String, actions: usize) {
        let told = self.told.entry(name).or_default();
        *told = (told.0 + 1, told.1 + actions as u64);
    }
}

impl Watch for Recording {
    fn cluster(&mut self, number: usize, cluster: &Cluster, now: Time, event: &ClusterEvent) {
        let name = format!("cluster {number}");
        let mut twin = self.clusters.remove(&number).unwrap_or_else(|| self.create(&name, cluster));
        let actions = twin.tell(now, event);
        self.clusters.insert(number, twin);
        self.count(name, actions);
    }

    fn machine(&mut self, machine: &Machine, now: Time, event: &MachineEvent) {
        let id = machine.id();
        let name = format!("machine {}/{}", id.index, id.incarnation);
        let mut twin = self.machines.remove(&id).unwrap_or_else(|| self.create(&name, machine));
        let actions = twin.tell(now, event);
        self.machines.insert(id, twin);
        self.count(name, actions);
    }
}

/// Runs the world of a seed and records it. Returns events and actions by the name of the log.
pub(crate) fn record_world(dir: &Path, seed: u64, segment_bytes: u64) -> BTreeMap<String, (u64, u64)> {
    let recording = Rc::new(RefCell::new(Recording {
        dir: dir.to_owned(),
        segment_bytes,
        clusters: BTreeMap::new(),
        machines: BTreeMap::new(),
        told: BTreeMap::new(),
    }));
    let watch: Rc<RefCell<dyn Watch>> = recording.clone();
    World::new(Setup::random(seed)).watched(watch).run();
    recording.borrow().told.clone()
}

/// A Cluster that places and is told what comes of it, its time and its actions.
pub(crate) struct Placements {
    pub(crate) cluster: Cluster,
    pub(crate) now: u64,
    pub(crate) actions: Vec<ClusterAction>,
    requests: u64,
}

impl Placements {
    /// Two machines, and no limit that matters.
    pub(crate) fn new() -> Self {
        let config = ClusterConfig { level: Level::External, ..ClusterConfig::default() };
        let mut made =
            Self { cluster: Cluster::new(config).unwrap(), now: 0, actions: Vec::new(), requests: 0 };
        for (index, role) in [(0, Role::Prompt), (1, Role::Token)] {
            let machine = MachineId { index, incarnation: 1 };
            let join =
                Join { machine, role, kv_capacity_tokens: 1 << 20, speed_weight: 1, link: None, costs: None };
            made.tell(None, &ClusterEvent::Join(join));
        }
        made
    }

    /// Applies an event, and records it.
    pub(crate) fn tell(&mut self, recorder: Option<&mut Recorder<Cluster>>, event: &ClusterEvent) {
        self.now += 1000;
        self.actions.clear();
        let now = Time::from_ns(self.now);
        let result = self.cluster.handle(now, event, &mut self.actions);
        if let Some(recorder) = recorder {
            recorder.record(now, event, &result, &self.actions, &self.cluster);
        }
    }

    /// The next request arrives; with every second one, the one before ends. Every fifth event is refused.
    pub(crate) fn next(&mut self) -> ClusterEvent {
        self.requests += 1;
        let request = self.requests / 2;
        match (self.requests % 2, self.requests % 5) {
            (_, 0) => ClusterEvent::Arrive(Arrival::new(request, 0, 1)),
            (0, _) => ClusterEvent::Arrive(Arrival::new(request, 100, 20)),
            _ => {
                let key = LegKey { request: RequestId(request), attempt: Attempt(1) };
                ClusterEvent::Fact(Notice::Finished { key, tokens: 7 })
            }
        }
    }

    /// Records so many events as the log of a name.
    pub(crate) fn record(&mut self, dir: &Path, name: &str, events: u32, options: Options) {
        let mut recorder = Recorder::create(dir, name, &self.cluster, options).unwrap();
        for _ in 0..events {
            let event = self.next();
            self.tell(Some(&mut recorder), &event);
        }
    }
}
