//! The daemon: a Cluster, its sessions, and a gateway to clients that outlive it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use splitcore_core::cluster::Cluster;
use splitcore_core::config::ClusterConfig;
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Registration};
use splitcore_core::id::{AssignmentSeq, Epoch, LegKey, MachineId, RequestId};
use splitcore_core::leg::{Command, Notice, Report};
use splitcore_core::time::Time;
use splitcore_wire::given::Given;
use splitcore_wire::listen::{ConnectionId, Handle, Heard, Listener, What};
use splitcore_wire::message::{Assigned, Descriptor, Sampling, Tokens};
use splitcore_wire::roster::{Roster, Standing};
use splitcore_wire::session::{DaemonEvent, Settings};
use tokio::sync::mpsc;

use crate::client::{Client, State};
use crate::fleet::{Fleet, secret};
use crate::{Fault, ROLES};

const HOUR_NS: u64 = 3600 * 1_000_000_000;
const LIVE_MAX: usize = 40;

/// How a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Restart,
    Done,
}

/// What outlives a daemon.
pub(crate) struct Host {
    clients: Vec<Client>,
    faults: Vec<(u64, Fault)>,
    tokens: u64,
    tokens_wanted: u64,
    deadline: Instant,
    /// Workers that were killed and whose successors have yet to come.
    killed: usize,
    config: ClusterConfig,
    blocks: u32,
    pub(crate) seen: Seen,
}

/// What has happened, so that a test knows that it has tested something.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) handoffs: u64,
    pub(crate) adopted: u64,
    pub(crate) faults: u64,
    pub(crate) sessions: u64,
    /// Tokens that came again.
    pub(crate) repeated: u64,
    pub(crate) evicted: u64,
}

/// What does not.
struct Life<'a> {
    host: &'a mut Host,
    fleet: &'a mut Fleet,
    reports: BTreeMap<MachineId, Report>,
    cluster: Cluster,
    origin: Instant,
    /// The clock goes ahead of the real one when there is nothing to wait for.
    ahead_ns: u64,
    roster: Roster,
    /// What each machine may speak of: an honest one speaks of nothing else.
    given: BTreeMap<MachineId, Given>,
    let_in: BTreeMap<ConnectionId, (MachineId, Handle)>,
    sessions: BTreeMap<MachineId, (ConnectionId, Handle)>,
    attached: bool,
    restarts: bool,
}

impl Host {
    pub(crate) fn new(
        clients: Vec<Client>,
        faults: Vec<(u64, Fault)>,
        config: ClusterConfig,
        blocks: u32,
        deadline: Instant,
    ) -> Self {
        let tokens_wanted = clients.iter().map(|client| client.wanted.len() as u64).sum();
        let (tokens, killed, seen) = (0, 0, Seen::default());
        Self { clients, faults, tokens, tokens_wanted, deadline, killed, config, blocks, seen }
    }

    pub(crate) fn into_clients(self) -> (Vec<Client>, Seen) {
        (self.clients, self.seen)
    }

    /// The life of one daemon.
    pub(crate) async fn serve(&mut self, listener: Listener, epoch: Epoch, fleet: &mut Fleet) -> Ends {
        let grace_ns = if epoch > Epoch(1) { HOUR_NS } else { 0 };
        let config = ClusterConfig {
            epoch,
            grace_ns,
            rejoin_limit_ns: HOUR_NS,
            park_limit_ns: 10 * HOUR_NS,
            attempts_max: 100,
            ..self.config
        };
        let settings = Settings { secret: Some(secret()), epoch, ..Settings::default() };
        let (sender, mut heard) = mpsc::channel(1024);
        tokio::spawn(listener.serve(settings, sender));
        let deadline = self.deadline;
        let mut life = Life {
            host: self,
            fleet,
            reports: BTreeMap::new(),
            cluster: Cluster::new(config).unwrap(),
            origin: Instant::now(),
            ahead_ns: 0,
            roster: Roster::new(16),
            given: BTreeMap::new(),
            let_in: BTreeMap::new(),
            sessions: BTreeMap::new(),
            attached: epoch == Epoch(1),
            restarts: false,
        };
        life.tell(&ClusterEvent::Tick);
        loop {
            assert!(Instant::now() < deadline, "time is up: {}", life.state());
            let now = life.now();
            let due = life.cluster.next_deadline().map_or(HOUR_NS, |due| due.since(now));
            let wait = Duration::from_nanos(due).min(Duration::from_millis(500));
            tokio::select! {
                heard = heard.recv() => if let Some(heard) = heard { life.hear(heard) },
                () = tokio::time::sleep(wait) => life.tell(&ClusterEvent::Tick),
            }
            life.open_when_all_are_here();
            life.submit();
            life.meddle();
            let ends = if life.restarts { Some(Ends::Restart) } else { life.is_done().then_some(Ends::Done) };
            if let Some(ends) = ends {
                let counters = life.cluster.counters();
                life.host.seen.adopted += counters.adopted;
                life.host.seen.faults += counters.faults;
                return ends;
            }
        }
    }
}

impl Life<'_> {
    fn now(&self) -> Time {
        Time::from_ns(self.origin.elapsed().as_nanos() as u64 + self.ahead_ns)
    }

    fn state(&self) -> String {
        let open = self.host.clients.iter().filter(|client| !matches!(client.state, State::Ended(_)));
        let open: Vec<String> = open
            .map(|client| {
                let (id, state, of) = (client.id, client.state, client.wanted.len());
                format!("{id} {state:?} {} of {of}", client.received.len())
            })
            .collect();
        let loads: Vec<_> = (0..self.cluster.machines_len()).map(|index| self.cluster.load(index)).collect();
        format!(
            "epoch {:?}, recovering {}, sessions {:?}, {:?}, {loads:?}, {:?}, open {open:?}",
            self.cluster.epoch(),
            self.cluster.is_recovering(),
            self.sessions.keys(),
            self.cluster.counters(),
            self.reports
        )
    }

    fn client(&mut self, request: RequestId) -> &mut Client {
        &mut self.host.clients[request.0 as usize]
    }

    fn hear(&mut self, Heard { connection, what }: Heard) {
        match what {
            What::Hello { hello, from, handle } => {
                match self.roster.enter(connection.0, &hello, &from, |_| Standing::Away) {
                    Ok(machine) => {
                        handle.welcome(machine);
                        self.let_in.insert(connection, (machine, handle));
                    }
                    Err(refusal) => handle.refuse(refusal),
                }
            }
            What::Event(DaemonEvent::Register { registration, descriptors }) => {
                self.register(connection, *registration, &descriptors);
            }
            What::Closed { .. } => {
                self.roster.leave(connection.0);
                let Some((machine, _)) = self.let_in.remove(&connection) else { return };
                if self.sessions.get(&machine).is_some_and(|(current, _)| *current == connection) {
                    self.sessions.remove(&machine);
                    self.tell(&ClusterEvent::Disconnect { machine });
                }
            }
            What::Event(event) => {
                let Some((from, _)) = self.let_in.get(&connection) else { return };
                let from = *from;
                if self.sessions.get(&from).is_none_or(|(current, _)| *current != connection) {
                    return;
                }
                match event {
                    DaemonEvent::Notice(notice) => {
                        self.given.get_mut(&from).unwrap().notice(&notice).unwrap();
                        if let Notice::Report(report)
                        | Notice::Refused { report, .. }
                        | Notice::Released { report, .. } = notice
                        {
                            self.reports.insert(from, report);
                        }
                        self.host.seen.evicted += u64::from(matches!(notice, Notice::Evicted { .. }));
                        self.host.seen.handoffs += u64::from(matches!(notice, Notice::Landed { .. }));
                        self.tell(&ClusterEvent::Notice { from, notice });
                    }
                    DaemonEvent::Tokens(tokens) => {
                        self.given.get_mut(&from).unwrap().tokens(&tokens).unwrap();
                        self.gateway(from, &tokens);
                    }
                    event => panic!("{event:?}"),
                }
            }
        }
    }

    fn register(
        &mut self,
        connection: ConnectionId,
        registration: Registration,
        descriptors: &BTreeMap<LegKey, Descriptor>,
    ) {
        let (machine, handle) = self.let_in[&connection].clone();
        self.sessions.retain(|id, (_, old)| {
            let stays = id.index != machine.index;
            if !stays {
                old.close("another session has begun");
            }
            stays
        });
        for (key, descriptor) in descriptors {
            let claims = registration.claims.iter().filter(|claim| claim.key == *key);
            let resumed = claims.map(|claim| claim.work.terms.resumed_tokens).max().unwrap();
            assert_eq!(descriptor.prompt, self.client(key.request).prompt_from(resumed), "{key:?}");
        }
        self.sessions.insert(machine, (connection, handle.clone()));
        self.host.seen.sessions += 1;
        // A place that was left out has incarnation 0.
        let before = self.cluster.load(machine.index).map_or(0, |load| load.machine.incarnation);
        if (1..machine.incarnation).contains(&before) {
            self.host.killed -= 1;
            // What the one before had is with others when they say so.
            for client in &mut self.host.clients {
                if client.state == (State::Live { acknowledged: true }) {
                    client.state = State::Live { acknowledged: false };
                }
            }
        }
        self.roster.register(connection.0);
        let blocks = self.roster.member(machine.index).unwrap().blocks;
        let given = self.given.entry(machine).or_insert_with(|| Given::new(blocks));
        given.check_registration(&registration, self.cluster.epoch()).unwrap();
        given.register(&registration);
        let mut actions = Vec::new();
        let event = ClusterEvent::Register(registration);
        if let Err(error) = self.cluster.handle(self.now(), &event, &mut actions) {
            handle.close(&error.to_string());
            self.sessions.remove(&machine);
        }
        self.act(actions);
    }

    fn tell(&mut self, event: &ClusterEvent) {
        if let ClusterEvent::Notice { notice, .. } = event {
            self.acknowledge(notice);
        }
        let mut actions = Vec::new();
        let now = self.now();
        match self.cluster.handle(now, event, &mut actions) {
            Ok(_) => self.act(actions),
            Err(error) => panic!("{event:?}: {error}"),
        }
    }

    fn acknowledge(&mut self, notice: &Notice) {
        let (Notice::Reserved { key } | Notice::PrefillDone { key, .. } | Notice::Landed { key }) = *notice
        else {
            return;
        };
        if self.cluster.attempt(key.request) != Some(key.attempt) {
            return;
        }
        let client = self.client(key.request);
        if client.state == (State::Live { acknowledged: false }) {
            client.state = State::Live { acknowledged: true };
        }
    }

    fn act(&mut self, actions: Vec<ClusterAction>) {
        for action in actions {
            match action {
                ClusterAction::Registered { to, .. } => self.sessions[&to].1.registered(),
                ClusterAction::Command { to, seq, command } => self.command(to, seq, command),
                ClusterAction::Rejected { request, .. } => self.client(request).state = State::New,
                ClusterAction::Ended { request, outcome } => {
                    let client = self.client(request);
                    // One that the last daemon has told its client of may come back from a worker, and end unheard.
                    if !matches!(client.state, State::Ended(_)) {
                        client.state = State::Ended(outcome);
                    }
                }
                ClusterAction::Placed(_)
                | ClusterAction::Parked { .. }
                | ClusterAction::Moved { .. }
                | ClusterAction::Drained { .. } => {}
            }
        }
    }

    fn command(&mut self, to: MachineId, seq: AssignmentSeq, command: Command) {
        let mut assigned = Assigned { seq, command, descriptor: None, peer: None };
        if let Some(work) = assigned.work() {
            let client = &self.host.clients[assigned.key().request.0 as usize];
            let prompt = client.prompt_from(work.terms.resumed_tokens);
            assigned.descriptor = Some(Descriptor {
                name: client.id.to_string(),
                prompt,
                sampling: Sampling { temperature: 1.0, top_p: 1.0, seed: client.id },
                stop: Vec::new(),
                stop_ids: Client::stop_ids(),
                note: String::new(),
            });
        }
        assigned.peer = assigned.other().map(|other| self.roster.address(other));
        self.given.get_mut(&to).unwrap().command(&assigned);
        self.sessions[&to].1.command(assigned);
    }

    /// Gives tokens to their client, of the leg that runs there now: in the order of their numbers, each once.
    fn gateway(&mut self, from: MachineId, tokens: &Tokens) {
        let key = tokens.key;
        for (index, &id) in (tokens.from..).zip(&tokens.ids) {
            let delivered = self.cluster.delivered(key.request);
            let Some(delivered) = delivered.filter(|_| self.cluster.runs(key, from)) else { return };
            if index < delivered {
                self.host.seen.repeated += 1;
                continue;
            }
            assert_eq!(index, delivered, "{key:?}: a token comes before another");
            let client = self.client(key.request);
            if let Some(&known) = client.received.get(index as usize) {
                assert_eq!(known, id, "{key:?}: token {index} is another the second time");
            } else {
                assert_eq!(client.received.len(), index as usize, "{key:?}");
                assert!(matches!(client.state, State::Live { .. }), "{key:?}: {:?}", client.state);
                assert!(client.received.len() < client.wanted.len(), "{key:?}: a token behind the end");
                client.received.push(id);
                self.host.tokens += 1;
            }
            let notice = Notice::Progress { key, tokens: 1 };
            self.tell(&ClusterEvent::Notice { from, notice });
        }
    }

    /// The grace time ends when every worker is here; then clients come back.
    fn open_when_all_are_here(&mut self) {
        if self.cluster.is_recovering() && self.sessions.len() == ROLES.len() && self.all_registered() {
            self.ahead_ns += HOUR_NS;
            self.tell(&ClusterEvent::Tick);
        }
        if self.attached || self.cluster.is_recovering() {
            return;
        }
        self.attached = true;
        for client in &mut self.host.clients {
            let State::Live { acknowledged } = client.state else { continue };
            if self.cluster.attempt(RequestId(client.id)).is_none() {
                assert!(!acknowledged, "request {} was acknowledged, and no machine has it", client.id);
                assert!(client.received.is_empty());
                client.state = State::New;
            }
        }
    }

    fn all_registered(&self) -> bool {
        self.cluster.machines_len() as usize == ROLES.len()
    }

    fn submit(&mut self) {
        if self.cluster.is_recovering() || !self.all_registered() {
            return;
        }
        while self.cluster.live_requests() < LIVE_MAX {
            let Some(client) = self.host.clients.iter_mut().find(|client| client.state == State::New) else {
                return;
            };
            client.state = State::Live { acknowledged: false };
            let (id, prompt_tokens, cap) = (client.id, client.prompt.len() as u32, client.cap);
            self.tell(&ClusterEvent::Arrive(Arrival::new(id, prompt_tokens, cap)));
            if self.host.clients[id as usize].state == State::New {
                return;
            }
        }
    }

    fn meddle(&mut self) {
        let Some(&(after, fault)) = self.host.faults.first() else { return };
        if self.host.tokens * 1000 < after * self.host.tokens_wanted || self.cluster.is_recovering() {
            return;
        }
        // A worker and the daemon that die at once take with them what only these two have.
        let alone = |client: &Client| {
            client.state == (State::Live { acknowledged: false }) && !client.received.is_empty()
        };
        if self.host.killed > 0 || self.host.clients.iter().any(alone) {
            return;
        }
        self.host.faults.remove(0);
        match fault {
            Fault::Sever(index) => {
                let session = self.sessions.iter().find(|(id, _)| id.index == index);
                session.unwrap().1.1.close("the connection breaks");
            }
            Fault::Kill(index) => {
                self.host.killed += 1;
                self.fleet.kill(index);
            }
            Fault::Restart => self.restarts = true,
        }
    }

    fn is_done(&mut self) -> bool {
        let ended = |client: &Client| matches!(client.state, State::Ended(_));
        if !self.host.clients.iter().all(ended) || self.sessions.len() < ROLES.len() {
            return false;
        }
        let loads = (0..self.cluster.machines_len()).filter_map(|index| self.cluster.load(index));
        let empty = loads.into_iter().all(|load| (load.kv_tokens, load.legs, load.booked) == (0, 0, 0));
        let free = |id| self.reports.get(id).is_some_and(|report| report.free_blocks == self.host.blocks);
        let done = empty && self.cluster.live_requests() == 0 && self.sessions.keys().all(free);
        if done {
            self.cluster.check().unwrap();
        }
        done
    }
}
