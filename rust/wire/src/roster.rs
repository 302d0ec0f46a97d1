//! Who has which name and which place. A worker has them from its registration on: until then its place is only set
//! aside for it, so that whoever does not come so far leaves nothing behind. A worker that has had a place says so, and a
//! new daemon gives it the same.

use std::collections::BTreeMap;

use splitcore_core::id::MachineId;
use splitcore_core::kv::KvLayout;

use crate::auth::Key;
use crate::message::{Hello, PeerAddress, Refusal};
use crate::session::layout_refusal;

/// Workers that have been let in and have yet to register, at most.
pub const ENTERING_MAX: usize = 1024;

/// A worker that has registered, or is about to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Where others reach it.
    pub address: PeerAddress,
    /// Where its connection comes from.
    pub from: String,
    /// How its KV lies.
    pub layout: KvLayout,
    /// KV blocks that it has.
    pub blocks: u32,
}

/// How it stands with a machine that has registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is in session.
    Here,
    /// Its session is over, and it may come back.
    Away,
    /// It counts as lost, and does not come back.
    Lost,
}

/// A place, once somebody has had it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    member: Member,
    /// Whether its name is at another place by now.
    left: bool,
}

/// Every worker that has registered with a daemon, and those that are about to.
#[derive(Debug, Clone)]
pub struct Roster {
    places_max: u32,
    places: BTreeMap<u32, Place>,
    names: BTreeMap<String, u32>,
    /// Those that have been let in and have yet to register, by connection.
    entering: BTreeMap<u64, Member>,
}

impl Roster {
    /// Nobody yet, and places for so many.
    pub fn new(places_max: u32) -> Self {
        Self { places_max, places: BTreeMap::new(), names: BTreeMap::new(), entering: BTreeMap::new() }
    }

    /// Sets a place aside for a worker that connects from somewhere: the one that it has had, or the first that is free.
    /// It has it with [`Roster::register`].
    ///
    /// # Errors
    /// Its name is another's, its place is, or a later incarnation of it has been here; its KV fits nobody's; or there is
    /// no place left.
    pub fn enter(
        &mut self,
        connection: u64,
        hello: &Hello,
        from: &str,
        standing: impl Fn(MachineId) -> Standing,
    ) -> Result<MachineId, Refusal> {
        if let Some(index) = hello.index.filter(|&index| index >= self.places_max) {
            let expected = format!("below machines_max, which is {}", self.places_max);
            return Err(Refusal::new("index", expected, index));
        }
        if self.entering.len() >= ENTERING_MAX {
            return Err(Refusal::new("entering_max", ENTERING_MAX, "one worker more"));
        }
        self.check_layout(&hello.layout, &standing)?;
        let index = match self.known(hello, from, &standing)? {
            Some(index) => index,
            None => self.free(hello, &standing)?,
        };
        let machine = MachineId { index, incarnation: hello.incarnation };
        let address = PeerAddress {
            machine,
            peer: hello.peer.clone(),
            transfer: hello.transfer.clone(),
            key: hello.key,
        };
        let (name, from) = (hello.name.clone(), from.to_owned());
        let member = Member { name, address, from, layout: hello.layout, blocks: hello.blocks };
        self.entering.insert(connection, member);
        Ok(machine)
    }

    /// Whether KV can go between a worker and those that are here.
    ///
    /// # Errors
    /// What keeps it from that.
    pub fn check_layout(
        &self,
        layout: &KvLayout,
        standing: impl Fn(MachineId) -> Standing,
    ) -> Result<(), Refusal> {
        let mut here = self.places.values().map(|place| &place.member);
        let first = here.find(|member| standing(member.address.machine) != Standing::Lost);
        let ours = first.map_or(*layout, |member| member.layout);
        layout_refusal(&ours, layout).map_or(Ok(()), Err)
    }

    /// The place that a name has had, if it may have it again.
    fn known(
        &self,
        hello: &Hello,
        from: &str,
        standing: &impl Fn(MachineId) -> Standing,
    ) -> Result<Option<u32>, Refusal> {
        let Some(&index) = self.names.get(&hello.name) else { return Ok(None) };
        let member = &self.places[&index].member;
        let (machine, is) = (member.address.machine, standing(member.address.machine));
        if hello.incarnation < machine.incarnation {
            // One that is lost bars nobody: who comes under its name is another worker, and gets another place.
            return if is == Standing::Lost && hello.index.is_none() {
                Ok(None)
            } else {
                let expected = format!("at least {}", machine.incarnation);
                Err(Refusal::new("incarnation", expected, hello.incarnation))
            };
        }
        if let Some(given) = hello.index.filter(|&given| given != index) {
            return Err(Refusal::new("index", index, given));
        }
        if is == Standing::Here && host(&member.from) != host(from) {
            let (name, there) = (&member.name, &member.from);
            let expected = format!("a name of its own, as '{name}' is in session from {there}");
            return Err(Refusal::new("name", expected, format!("'{name}' from {from}")));
        }
        Ok(Some(index))
    }

    /// A place for a name that has none: the one that it says it has had, or else the first that nobody has had, or else
    /// one whose worker is lost.
    fn free(&self, hello: &Hello, standing: &impl Fn(MachineId) -> Standing) -> Result<u32, Refusal> {
        let entering = self.entering.values();
        let same = entering.clone().find(|member| member.name == hello.name);
        let taken: BTreeMap<u32, &str> =
            entering.map(|member| (member.address.machine.index, member.name.as_str())).collect();
        if let Some(index) = hello.index {
            let owner = self.places.get(&index).map(|place| place.member.name.as_str());
            return match owner.or(taken.get(&index).copied()).filter(|&owner| owner != hello.name) {
                Some(owner) => Err(Refusal::new("name", owner, &hello.name)),
                None => Ok(index),
            };
        }
        if let Some(member) = same {
            return Ok(member.address.machine.index);
        }
        let is_lost = |(index, place): (&u32, &Place)| {
            let machine = place.member.address.machine;
            let follows = hello.incarnation > machine.incarnation && !taken.contains_key(index);
            (follows && (place.left || standing(machine) == Standing::Lost)).then_some(*index)
        };
        let mut had = self.places.keys().peekable();
        let vacant =
            (0..self.places_max).find(|index| had.next_if_eq(&index).is_none() && !taken.contains_key(index));
        let free = vacant.or_else(|| self.places.iter().find_map(is_lost));
        free.ok_or_else(|| Refusal::new("machines_max", self.places_max, "one worker more"))
    }

    /// The worker of a connection has registered: the place is its own. Returns who it is.
    pub fn register(&mut self, connection: u64) -> Option<&Member> {
        let member = self.entering.remove(&connection)?;
        let index = member.address.machine.index;
        if let Some(before) = self.places.get(&index)
            && before.member.name != member.name
            && !before.left
        {
            self.names.remove(&before.member.name);
        }
        if let Some(old) = self.names.insert(member.name.clone(), index).filter(|&old| old != index)
            && let Some(place) = self.places.get_mut(&old)
        {
            place.left = true;
        }
        self.places.insert(index, Place { member, left: false });
        self.member(index)
    }

    /// A connection is over, or its registration is not taken: what was set aside for it is free.
    pub fn leave(&mut self, connection: u64) {
        self.entering.remove(&connection);
    }

    /// Who is about to register on a connection.
    pub fn entering(&self, connection: u64) -> Option<&Member> {
        self.entering.get(&connection)
    }

    /// Who has this place.
    pub fn member(&self, index: u32) -> Option<&Member> {
        self.places.get(&index).map(|place| &place.member)
    }

    /// Where a machine is reached. One that has been replaced is not there any more, and its addresses are empty.
    pub fn address(&self, machine: MachineId) -> PeerAddress {
        let here = self.member(machine.index).map(|member| &member.address);
        let gone =
            || PeerAddress { machine, peer: String::new(), transfer: String::new(), key: Key::default() };
        here.filter(|here| here.machine == machine).cloned().unwrap_or_else(gone)
    }
}

/// The host of an address, without its port.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}
