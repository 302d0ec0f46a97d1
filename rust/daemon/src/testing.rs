//! What must hold whatever a worker says: a plain function, for fuzzers and for the tests that feed them at random.

use std::sync::Arc;

use splitcore_core::event::{Claim, Held, Join, Registration, Role};
use splitcore_core::id::{AssignmentSeq, Attempt, Epoch, LegKey, MachineId, Order, RequestId};
use splitcore_core::kv::{Arrangement, Dtype, KvLayout, Planes, Shard, TokenOrder, Values};
use splitcore_core::leg::{Command, Notice, Report, Terms, Work};
use splitcore_core::placement::Upto;
use splitcore_wire::auth::Key;
use splitcore_wire::hex::Hex;
use splitcore_wire::message::{Hello, PROTOCOL, Sampling, ToDaemon, ToWorker, Tokens};
use splitcore_wire::offline::Offline;
use splitcore_wire::session::Settings;

use crate::host::{Ending, Generate, Host, Output, Said};
use crate::options::Options;

const BLOCKS: u32 = 100;
/// What the honest worker gives.
const OUTPUT: [u32; 5] = [11, 12, 13, 14, 15];
/// Sessions of liars in one run, at most.
const LIARS_MAX: u64 = 8;

/// An honest worker, a request that it runs, and workers that say what `data` has them say. Whatever that is, the request
/// gets its tokens and its end, the books are right, and nothing panics. Returns how many sessions were let in.
///
/// # Panics
/// Something of that is not so.
pub fn worker_port(data: &[u8]) -> usize {
    let mut world = World::new();
    let mut bytes = Bytes(data);
    while !bytes.0.is_empty() && world.liars < LIARS_MAX {
        world.lie(&mut bytes);
    }
    world.end()
}

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Small for the most part, and at times the largest.
    fn number(&mut self) -> u32 {
        match self.byte() {
            255 => u32::MAX,
            254 => u32::from(self.byte()) << 24,
            byte => u32::from(byte),
        }
    }

    fn take(&mut self, most: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}

struct World {
    host: Arc<Host>,
    settings: Settings,
    honest: Offline,
    victim: LegKey,
    output: Output,
    liars: u64,
    let_in: usize,
}

fn layout() -> KvLayout {
    KvLayout {
        layers: 2,
        values: Values::Heads { heads: 2, head_dim: 8 },
        dtype: Dtype::F32,
        block_tokens: 16,
        order: TokenOrder::Nhd,
        planes: Planes::Apart,
        arrangement: Arrangement::LayerFirst,
        shard: Shard::WHOLE,
    }
}

fn hello(name: &str, index: Option<u32>, incarnation: u32) -> ToDaemon {
    ToDaemon::Hello(Box::new(Hello {
        protocol: PROTOCOL,
        name: name.to_owned(),
        index,
        incarnation,
        epoch: Epoch(0),
        model: "model".to_owned(),
        layout: layout(),
        blocks: BLOCKS,
        context: None,
        peer: String::new(),
        transfer: String::new(),
        key: Key::default(),
        nonce: Hex([1; 16]),
        proof: None,
    }))
}

fn registration(machine: MachineId, epoch: Epoch, claims: Vec<Claim>) -> Registration {
    let join = Join {
        machine,
        role: Role::Mixed,
        kv_capacity_tokens: 1600,
        speed_weight: 1,
        link: None,
        costs: None,
    };
    let report = Report { free_blocks: BLOCKS, ..Report::default() };
    Registration { join, epoch, report, claims }
}

/// Has the host hear what there is, and the worker what the host answers, until both are silent.
fn settle(host: &Host, worker: &mut Offline) {
    loop {
        let heard = worker.heard();
        if heard.is_empty() {
            return;
        }
        for heard in heard {
            assert_eq!(host.hear(heard), Ok(()));
        }
    }
}

/// Lets a worker say one thing.
fn say(host: &Host, worker: &mut Offline, message: ToDaemon) -> Vec<ToWorker> {
    worker.say(message);
    settle(host, worker);
    worker.told()
}

fn welcome(told: &[ToWorker]) -> Option<(MachineId, Epoch)> {
    told.iter().find_map(|message| match message {
        ToWorker::Welcome(welcome) => Some((welcome.machine, welcome.epoch)),
        _ => None,
    })
}

impl World {
    fn new() -> Self {
        let options = Options {
            model: Some("model".into()),
            machines_max: 16,
            grace_s: 0.0,
            // Nothing is handed over.
            split_from_tokens: 1000,
            ..Options::default()
        };
        let host = Arc::new(Host::new(&options).expect("the options are right"));
        let epoch = host.epoch().expect("it runs");
        let settings = Settings { model: Some("model".to_owned()), epoch, ..Settings::default() };
        let mut honest = Offline::new(0, settings.clone());
        let told = say(&host, &mut honest, hello("honest", None, 5));
        let (machine, _) = welcome(&told).expect("let in");
        let register = ToDaemon::Register(Box::new(registration(machine, Epoch(0), Vec::new())));
        let told = say(&host, &mut honest, register);
        assert!(told.iter().any(|message| matches!(message, ToWorker::Registered { .. })));
        let ask = Generate {
            name: "victim".to_owned(),
            choice: 0,
            prompt: vec![1, 2, 3].into(),
            max_new_tokens: OUTPUT.len() as u32,
            sampling: Sampling { temperature: 0.0, top_p: 1.0, seed: 0 },
            stop: Vec::new(),
            stop_ids: Vec::new(),
            note: String::new(),
            class: 0,
            priority: 0,
        };
        let output = host.generate(vec![ask]).expect("there is room").remove(0);
        settle(&host, &mut honest);
        let victim = honest.told().into_iter().find_map(|message| match message {
            ToWorker::Command(assigned) if matches!(assigned.command, Command::Compute { .. }) => {
                Some(assigned.key())
            }
            _ => None,
        });
        let victim = victim.expect("a leg");
        let first = Tokens { key: victim, from: 0, ids: OUTPUT[..2].to_vec() };
        say(&host, &mut honest, ToDaemon::Tokens(first));
        Self { host, settings, honest, victim, output, liars: 0, let_in: 0 }
    }

    /// One liar, from its connection to its end.
    fn lie(&mut self, bytes: &mut Bytes<'_>) {
        self.liars += 1;
        let mut liar = Offline::new(self.liars, self.settings.clone());
        let how = bytes.byte();
        if how & 3 != 3 {
            let index = (how & 4 > 0).then(|| bytes.number());
            let name = ["honest", "liar", "other", "\u{1b}[2J"][usize::from(how >> 3 & 3)];
            let told = say(&self.host, &mut liar, hello(name, index, bytes.number()));
            if let Some((machine, epoch)) = welcome(&told) {
                let claims = (0..bytes.byte() % 4).map(|_| self.claim(bytes)).collect();
                let epoch = if how & 32 > 0 { epoch } else { Epoch(0) };
                let mut registration = registration(machine, epoch, claims);
                registration.report.seq = AssignmentSeq(u64::from(how >> 6));
                let register = ToDaemon::Register(Box::new(registration));
                let told = say(&self.host, &mut liar, register);
                let is_in = told.iter().any(|message| matches!(message, ToWorker::Registered { .. }));
                self.let_in += usize::from(is_in);
            }
        }
        while !bytes.0.is_empty() && !liar.is_closed() {
            match bytes.byte() {
                0..16 => break,
                16..48 => {
                    let most = usize::from(bytes.byte());
                    liar.receive(&bytes.take(most));
                }
                what => liar.say(self.said(what, bytes)),
            }
            settle(&self.host, &mut liar);
            settle(&self.host, &mut self.honest);
            assert_eq!(self.host.check(), Ok(None));
        }
        liar.hang_up();
        settle(&self.host, &mut liar);
    }

    fn key(&self, bytes: &mut Bytes<'_>) -> LegKey {
        let request = RequestId(self.victim.request.0 + u64::from(bytes.byte() % 4));
        LegKey { request, attempt: Attempt(u32::from(bytes.byte() % 4)) }
    }

    fn claim(&self, bytes: &mut Bytes<'_>) -> Claim {
        let held = [Held::Kept, Held::Finished, Held::Closing][usize::from(bytes.byte() % 3)];
        let terms = Terms { resumed_tokens: u32::from(bytes.byte() % 3), ..Terms::default() };
        let work = Work {
            prompt_tokens: 3 + terms.resumed_tokens,
            start: 0,
            upto: Upto::End,
            max_new_tokens: 5,
            terms,
        };
        Claim { key: self.key(bytes), order: Order(u64::from(bytes.byte() % 3)), work, held }
    }

    fn said(&self, what: u8, bytes: &mut Bytes<'_>) -> ToDaemon {
        let key = self.key(bytes);
        let tokens = bytes.number();
        let seq = AssignmentSeq(u64::from(bytes.number()));
        let report = Report { seq, free_blocks: bytes.number(), ..Report::default() };
        let to = (what & 128 > 0).then_some(MachineId { index: 0, incarnation: 5 });
        let notice = match what % 16 {
            0 => Notice::Reserved { key },
            1 => Notice::Refused { key, report },
            2 => Notice::PrefillDone { key, sampled: true },
            3 => Notice::Sent { key },
            4 => Notice::Landed { key },
            5 => Notice::Progress { key, tokens },
            6 => Notice::Evicted { key, tokens },
            7 => Notice::Finished { key, tokens },
            8 => Notice::Released { key, to, report },
            9 => Notice::TransferFailed { key },
            10 => Notice::Relief { key },
            11 => Notice::Gone { key },
            12 => Notice::Report(report),
            _ => {
                let ids = (0..bytes.byte() % 8).map(|_| 7777).collect();
                return ToDaemon::Tokens(Tokens { key, from: tokens, ids });
            }
        };
        ToDaemon::Notice(notice)
    }

    /// The honest worker goes on, and the client gets what it was to get.
    fn end(mut self) -> usize {
        assert!(!self.honest.is_closed(), "the honest worker has its session still");
        let rest = Tokens { key: self.victim, from: 0, ids: OUTPUT.to_vec() };
        say(&self.host, &mut self.honest, ToDaemon::Tokens(rest));
        let finished = Notice::Finished { key: self.victim, tokens: OUTPUT.len() as u32 };
        say(&self.host, &mut self.honest, ToDaemon::Notice(finished));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut told = Vec::new();
        let ending = runtime.block_on(async {
            loop {
                match self.output.next().await {
                    Said::Tokens { ids, .. } => told.extend(ids),
                    Said::Ended(ending) => return ending,
                }
            }
        });
        assert_eq!((told, ending), (OUTPUT.to_vec(), Ending::Finished));
        assert_eq!(self.host.check(), Ok(None));
        self.let_in
    }
}
