//! The receiving half against a naive model, and what follows from its rules.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use splitcore_core::id::RequestId;
use splitcore_core::kv::BlockId;

use super::kit::{HERE, Stranger, THERE, blocks, key, landing, seal};
use crate::error::TransferError;
use crate::handshake::Incarnation;
use crate::landing::{Arrival, Landing};
use crate::transfer::{PeerState, TransferKey};

const LAYERS: u16 = 3;
const SLOTS: u32 = 3;
const BLOCKS: u32 = 4;
const BYTES: u64 = 64;

/// One writes through this process, the other does not.
const WRITERS: [Incarnation; 2] = [THERE, Incarnation(3)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Stopping,
    Fenced,
}

#[derive(Debug, Clone)]
struct Place {
    key: TransferKey,
    writer: usize,
    published: Vec<u16>,
    told: u16,
    phase: Phase,
    failure: Option<TransferError>,
}

impl Place {
    fn landed(&self) -> u16 {
        (0..LAYERS).take_while(|layer| self.published.contains(layer)).count() as u16
    }

    fn is_whole(&self) -> bool {
        self.landed() == LAYERS
    }
}

/// What a receiving half is, in maps.
struct Model {
    places: BTreeMap<u32, Place>,
    generations: BTreeMap<u32, u32>,
    free: VecDeque<u32>,
    writers: [PeerState; 2],
    told: Vec<Arrival>,
    keys: Vec<TransferKey>,
}

#[derive(Debug, Clone)]
enum Step {
    Open(usize),
    Publish(usize, usize, u16, bool),
    Admit(usize, usize, u16),
    Stop(usize),
    Fail(usize),
    Fenced(usize, usize),
    Release(usize),
    Join(usize),
    Left(usize, bool),
    Wait(usize, u16),
    Poll,
}

fn step() -> impl Strategy<Value = Step> {
    // Which transfer, counted from the last one opened: stale ones too.
    let of = || prop_oneof![6 => 0..4_usize, 1 => 4..12_usize];
    let who = || 0..2_usize;
    prop_oneof![
        6 => who().prop_map(Step::Open),
        16 => (of(), prop_oneof![9 => Just(2_usize), 1 => who()], 0..LAYERS + 1, proptest::bool::weighted(0.95))
            .prop_map(|(of, who, layer, right)| Step::Publish(of, who, layer, right)),
        2 => (of(), who(), 0..LAYERS + 1).prop_map(|(of, who, layer)| Step::Admit(of, who, layer)),
        4 => of().prop_map(Step::Stop),
        2 => of().prop_map(Step::Fail),
        4 => (of(), who()).prop_map(|(of, who)| Step::Fenced(of, who)),
        6 => of().prop_map(Step::Release),
        3 => who().prop_map(Step::Join),
        2 => (who(), any::<bool>()).prop_map(|(who, gone)| Step::Left(who, gone)),
        3 => (of(), 0..LAYERS + 1).prop_map(|(of, layer)| Step::Wait(of, layer)),
        6 => Just(Step::Poll),
    ]
}

impl Model {
    fn new() -> Self {
        Self {
            places: BTreeMap::new(),
            generations: BTreeMap::new(),
            free: (0..SLOTS).collect(),
            writers: [PeerState::Absent; 2],
            told: Vec::new(),
            keys: Vec::new(),
        }
    }

    fn key(&self, of: usize) -> TransferKey {
        let index = self.keys.len().checked_sub(of + 1);
        index.and_then(|index| self.keys.get(index)).copied().unwrap_or(key(99, 0, 77))
    }

    fn place(&mut self, key: TransferKey) -> Result<&mut Place, TransferError> {
        self.places.get_mut(&key.slot).filter(|place| place.key == key).ok_or(TransferError::Unknown { key })
    }

    fn open(&mut self, writer: usize) -> Result<TransferKey, TransferError> {
        let slot = self.free.pop_front().ok_or(TransferError::NoSlot { slots: SLOTS })?;
        let generation = self.generations.entry(slot).or_default();
        *generation += 1;
        let key = key(self.keys.len() as u64, slot, *generation);
        let place = Place { key, writer, published: vec![], told: 0, phase: Phase::Open, failure: None };
        self.places.insert(slot, place);
        self.keys.push(key);
        Ok(key)
    }

    /// Whether it may be written by this writer.
    fn writing(&mut self, writer: usize, key: TransferKey) -> Result<&mut Place, TransferError> {
        let place = self.place(key)?;
        if place.writer != writer {
            return Err(TransferError::Unknown { key });
        }
        if place.phase != Phase::Open {
            return Err(TransferError::Stopped { key, layer: place.told, peer: PeerState::Connected });
        }
        Ok(place)
    }

    fn publish(
        &mut self,
        writer: usize,
        key: TransferKey,
        layer: u16,
        bytes: u64,
    ) -> Result<(), TransferError> {
        let place = self.writing(writer, key)?;
        if layer >= LAYERS {
            return Err(TransferError::NoSuchLayer { key, layer, layers: LAYERS });
        }
        if bytes != BYTES {
            return Err(TransferError::Incomplete { key, layer, bytes, expected: BYTES });
        }
        if place.published.contains(&layer) {
            return Err(TransferError::Published { key, layer });
        }
        place.published.push(layer);
        Ok(())
    }

    fn end(&mut self, key: TransferKey, error: Option<TransferError>) -> Result<(), TransferError> {
        let writers = self.writers;
        let place = self.place(key)?;
        if place.phase != Phase::Open || place.is_whole() && error.is_some() {
            return Ok(());
        }
        let fenced = place.is_whole()
            || match writers[place.writer] {
                PeerState::Absent | PeerState::Lost => true,
                PeerState::Silent => false,
                PeerState::Connected => place.writer == 0,
            };
        place.phase = if fenced { Phase::Fenced } else { Phase::Stopping };
        place.failure.clone_from(&error);
        self.told.extend(error.map(|error| Arrival::Failed(key, error)));
        self.told.extend(fenced.then_some(Arrival::Fenced(key)));
        Ok(())
    }

    fn fenced(&mut self, writer: usize, key: TransferKey) {
        let Ok(place) = self.place(key) else { return };
        if place.writer == writer && place.phase == Phase::Stopping {
            place.phase = Phase::Fenced;
            self.told.push(Arrival::Fenced(key));
        }
    }

    fn release(&mut self, key: TransferKey) -> Result<(), TransferError> {
        let place = self.place(key)?;
        let landed = place.phase == Phase::Open && place.is_whole();
        if !landed && place.phase != Phase::Fenced {
            return Err(TransferError::NotFenced { key });
        }
        self.places.remove(&key.slot);
        self.free.push_back(key.slot);
        Ok(())
    }

    fn left(&mut self, writer: usize, gone: bool) {
        match self.writers[writer] {
            PeerState::Absent => return,
            PeerState::Lost if !gone => return,
            _ => self.writers[writer] = if gone { PeerState::Lost } else { PeerState::Silent },
        }
        for place in self.places.values_mut().filter(|place| place.writer == writer) {
            let fails = place.phase == Phase::Open && !place.is_whole();
            if fails {
                let error = TransferError::PeerLost { key: place.key, peer: WRITERS[writer] };
                place.failure = Some(error.clone());
                place.phase = Phase::Stopping;
                self.told.push(Arrival::Failed(place.key, error));
            }
            if gone && place.phase == Phase::Stopping {
                place.phase = Phase::Fenced;
                self.told.push(Arrival::Fenced(place.key));
            }
        }
    }

    fn wait(&mut self, key: TransferKey, layer: u16) -> Result<(), TransferError> {
        let writers = self.writers;
        let place = self.place(key)?;
        let peer = writers[place.writer];
        if layer >= LAYERS {
            Err(TransferError::NoSuchLayer { key, layer, layers: LAYERS })
        } else if place.published.contains(&layer) {
            Ok(())
        } else if place.phase == Phase::Open {
            Err(TransferError::Timeout { key, layer, waited: Duration::ZERO, peer })
        } else {
            Err(place.failure.clone().unwrap_or(TransferError::Stopped { key, layer, peer }))
        }
    }

    fn poll(&mut self) -> Vec<Arrival> {
        let mut all = Vec::new();
        for place in self.places.values_mut() {
            let layers = place.landed();
            if layers > place.told {
                place.told = layers;
                all.push(Arrival::Layers { key: place.key, layers, of: LAYERS });
            }
        }
        all.append(&mut self.told);
        all
    }
}

/// Applies a step to both and compares.
fn apply(step: &Step, real: &Landing, model: &mut Model) -> Result<(), TestCaseError> {
    let writer_of = |model: &Model, key: TransferKey, who: usize| {
        let writer = model.places.get(&key.slot).map_or(0, |place| place.writer);
        if who == 2 { writer } else { who }
    };
    match *step {
        Step::Open(writer) => {
            let request = RequestId(model.keys.len() as u64);
            let granted = blocks([1, 2]);
            let grant = real.open(WRITERS[writer], request, granted.clone(), BYTES);
            if let Ok(grant) = &grant {
                prop_assert_eq!(&grant.blocks, &granted);
                prop_assert_eq!(grant.receiver, HERE);
            }
            prop_assert_eq!(grant.map(|grant| grant.key), model.open(writer));
        }
        Step::Publish(of, who, layer, right) => {
            let key = model.key(of);
            let who = writer_of(model, key, who);
            let bytes = if right { BYTES } else { BYTES - 1 };
            let published = real.publish(WRITERS[who], key, layer, seal(bytes));
            prop_assert_eq!(published, model.publish(who, key, layer, bytes));
        }
        Step::Admit(of, who, layer) => {
            let key = model.key(of);
            admit(real, model, key, who, layer)?;
        }
        Step::Stop(of) => {
            let key = model.key(of);
            prop_assert_eq!(real.stop(key), model.end(key, None));
        }
        Step::Fail(of) => {
            let key = model.key(of);
            let error = TransferError::Corrupt { key, layer: 0, found: 1, expected: 2 };
            real.fail(key, error.clone());
            let _ = model.end(key, Some(error));
        }
        Step::Fenced(of, who) => {
            let key = model.key(of);
            real.fenced(WRITERS[who], key);
            model.fenced(who, key);
        }
        Step::Release(of) => {
            let key = model.key(of);
            prop_assert_eq!(real.release(key), model.release(key));
        }
        Step::Join(who) => join(real, model, who)?,
        Step::Left(who, gone) => {
            real.left(WRITERS[who], gone);
            model.left(who, gone);
        }
        Step::Wait(of, layer) => {
            let key = model.key(of);
            let waited = real.wait_layer(key, layer, Duration::ZERO);
            if let Ok(found) = &waited {
                prop_assert_eq!(*found, seal(BYTES));
            }
            prop_assert_eq!(waited.map(|_| ()), model.wait(key, layer));
        }
        Step::Poll => {
            let mut arrivals = Vec::new();
            real.poll(&mut arrivals);
            prop_assert_eq!(arrivals, model.poll());
        }
    }
    Ok(())
}

fn admit(
    real: &Landing,
    model: &mut Model,
    key: TransferKey,
    who: usize,
    layer: u16,
) -> Result<(), TestCaseError> {
    let hold = real.writing(WRITERS[who], key);
    let place = model.writing(who, key).cloned();
    prop_assert_eq!(hold.as_ref().err(), place.as_ref().err());
    if let (Ok(hold), Ok(place)) = (hold, place) {
        let offset = u32::from(layer) * 32;
        let admitted = hold.admit(layer, BlockId(1), offset, 32);
        let writable = layer < LAYERS && !place.published.contains(&layer);
        prop_assert_eq!(admitted.is_ok(), writable, "{:?}", admitted);
        prop_assert!(hold.admit(layer, BlockId(3), offset, 32).is_err(), "not granted");
    }
    Ok(())
}

fn join(real: &Landing, model: &mut Model, who: usize) -> Result<(), TestCaseError> {
    let joined = real.joined(WRITERS[who], Stranger::new(who == 0));
    // One that maps our memory has nothing beside it.
    let may = match model.writers[who] {
        PeerState::Absent | PeerState::Lost => true,
        PeerState::Connected => who == 0,
        PeerState::Silent => false,
    };
    prop_assert_eq!(joined.is_ok(), may);
    if may {
        model.writers[who] = PeerState::Connected;
    }
    Ok(())
}

fn check(steps: &[Step]) -> Result<(), TestCaseError> {
    let real = landing(LAYERS, BLOCKS, SLOTS);
    let mut model = Model::new();
    for step in steps {
        apply(step, &real, &mut model)?;
        prop_assert_eq!(real.in_use(), model.places.len() as u32);
        for (who, &state) in model.writers.iter().enumerate() {
            prop_assert_eq!(real.writer_state(WRITERS[who]), state);
        }
        for &key in &model.keys {
            let landed = model.places.get(&key.slot).filter(|place| place.key == key).map(Place::landed);
            prop_assert_eq!(real.landed(key), landed.ok_or(TransferError::Unknown { key }));
        }
    }
    // Whatever has happened, stop and the writers' death give every slot back.
    for key in model.keys.clone() {
        let _ = real.stop(key);
    }
    for writer in WRITERS {
        real.left(writer, true);
    }
    for key in model.keys {
        let _ = real.release(key);
    }
    prop_assert_eq!(real.in_use(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.saturating_mul(2), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_landing_does_what_its_model_does(steps in proptest::collection::vec(step(), 1..80)) {
        check(&steps)?;
    }
}

/// What each transfer is told over its life, whatever happens to it.
fn check_story(steps: &[Step]) -> Result<(), TestCaseError> {
    let real = landing(LAYERS, BLOCKS, SLOTS);
    let mut model = Model::new();
    let mut story: BTreeMap<(u32, u32), Vec<Arrival>> = BTreeMap::new();
    let mut hear = |real: &Landing| {
        let mut arrivals = Vec::new();
        real.poll(&mut arrivals);
        for arrival in arrivals {
            let (Arrival::Layers { key, .. } | Arrival::Failed(key, _) | Arrival::Fenced(key)) = &arrival;
            story.entry((key.slot, key.generation.get())).or_default().push(arrival);
        }
    };
    for step in steps.iter().filter(|step| !matches!(step, Step::Poll)) {
        apply(step, &real, &mut model)?;
        hear(&real);
        // The model's own list is not compared here.
        model.poll();
    }
    for told in story.values() {
        let layers: Vec<u16> = told
            .iter()
            .filter_map(|arrival| match arrival {
                Arrival::Layers { layers, .. } => Some(*layers),
                Arrival::Failed(..) | Arrival::Fenced(_) => None,
            })
            .collect();
        prop_assert!(layers.is_sorted_by(|one, next| one < next), "{:?}", told);
        let count = |wanted: fn(&Arrival) -> bool| told.iter().filter(|arrival| wanted(arrival)).count();
        prop_assert!(count(|arrival| matches!(arrival, Arrival::Failed(..))) <= 1, "{:?}", told);
        let fences = count(|arrival| matches!(arrival, Arrival::Fenced(_)));
        prop_assert!(fences <= 1, "{:?}", told);
        if fences == 1 {
            prop_assert!(matches!(told.last(), Some(Arrival::Fenced(_))), "nothing after it: {:?}", told);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layers_only_grow_and_a_fence_is_the_last_word(steps in proptest::collection::vec(step(), 1..80)) {
        check_story(&steps)?;
    }
}
