//! What is open of other processes' memory: each handle once in a context, however many links use it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::{Driver, Fault, Handle};
use crate::handshake::Incarnation;

/// Which memory: an address that is used again has another handle, and a process that was started again another
/// incarnation, so neither is taken for the old one.
type Key = (Incarnation, Handle);

/// The mappings that one context has open.
pub(crate) struct Imports {
    driver: Arc<dyn Driver>,
    open: Mutex<BTreeMap<Key, Mapped>>,
}

struct Mapped {
    base: u64,
    uses: usize,
}

/// One use of a mapping: closed with the last.
pub(crate) struct Import {
    imports: Arc<Imports>,
    key: Key,
    base: u64,
}

impl Imports {
    /// Nothing is open yet.
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { driver, open: Mutex::default() })
    }

    /// Maps the memory that `handle` of `peer` names, if it is not mapped yet.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn open(self: &Arc<Self>, peer: Incarnation, handle: Handle) -> Result<Import, Fault> {
        let key = (peer, handle);
        // Held while the driver opens, since a second opening at the same time is what must not be.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mapped = match open.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Mapped { base: self.driver.open(&handle)?, uses: 0 })
            }
        };
        mapped.uses += 1;
        Ok(Import { imports: self.clone(), key, base: mapped.base })
    }

    /// How many mappings are open.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Import {
    /// Where it begins here.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let mut open = self.imports.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mapped) = open.get_mut(&self.key) else { return };
        mapped.uses -= 1;
        if mapped.uses == 0 {
            open.remove(&self.key);
            // Under the lock, so that it is not opened again before it is closed. There is nobody to tell of a
            // failure: the driver closes what a process leaves open.
            let _ = self.imports.driver.close(self.base);
        }
    }
}
