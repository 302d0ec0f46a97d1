//! Who has which name and which place. A name keeps its place for as long as the daemon lives; a worker that has had one
//! says so, so that a new daemon gives it the same.

use std::collections::BTreeMap;

use splitcore_core::id::MachineId;

use crate::auth::Key;
use crate::message::{Hello, PeerAddress, Refusal};

/// A worker that has been let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Where others reach it.
    pub address: PeerAddress,
}

/// Every worker that a daemon has met.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    places: BTreeMap<u32, Member>,
    names: BTreeMap<String, u32>,
}

impl Roster {
    /// Gives a worker its place: the one it has had, or the first that is free.
    ///
    /// # Errors
    /// Its name is another's, its place is, or a later incarnation of it has been here.
    pub fn enter(&mut self, hello: &Hello) -> Result<MachineId, Refusal> {
        let known = self.names.get(&hello.name).copied();
        let index = match (hello.index, known) {
            (Some(index), Some(known)) if index != known => {
                return Err(Refusal::new("index", known, index));
            }
            (Some(index), _) | (None, Some(index)) => index,
            (None, None) => self.first_free(),
        };
        if let Some(member) = self.places.get(&index) {
            if member.name != hello.name {
                return Err(Refusal::new("name", &member.name, &hello.name));
            }
            let newest = member.address.machine.incarnation;
            if hello.incarnation < newest {
                return Err(Refusal::new("incarnation", newest, hello.incarnation));
            }
        }
        let machine = MachineId { index, incarnation: hello.incarnation };
        let address = PeerAddress {
            machine,
            peer: hello.peer.clone(),
            transfer: hello.transfer.clone(),
            key: hello.key,
        };
        self.places.insert(index, Member { name: hello.name.clone(), address });
        self.names.insert(hello.name.clone(), index);
        Ok(machine)
    }

    fn first_free(&self) -> u32 {
        (0..)
            .zip(self.places.keys())
            .find(|(at, taken)| at != *taken)
            .map_or(self.places.len() as u32, |(at, _)| at)
    }

    /// Who has this place.
    pub fn member(&self, index: u32) -> Option<&Member> {
        self.places.get(&index)
    }

    /// Where a machine is reached. One that has been replaced is not there any more, and its addresses are empty.
    pub fn address(&self, machine: MachineId) -> PeerAddress {
        let here = self.places.get(&machine.index).map(|member| &member.address);
        let gone =
            || PeerAddress { machine, peer: String::new(), transfer: String::new(), key: Key::default() };
        here.filter(|here| here.machine == machine).cloned().unwrap_or_else(gone)
    }
}
