//! Memory that two processes share: a sealed, prefaulted memfd.
//!
//! Sealed, so that no peer can shrink it under the other's feet (a shrunk mapping kills its reader with `SIGBUS`).
//! Prefaulted, since the first touch of a page costs more than fifteen copies of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::MemoryError;

/// A memfd, mapped for reading and writing. Unmapped and closed when dropped.
#[derive(Debug)]
pub struct Mapping {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory; who may touch which bytes of it is the business of those who hold it.
unsafe impl Send for Mapping {}
// SAFETY: as above; the mapping itself hands out nothing but an address.
unsafe impl Sync for Mapping {}

/// Neither end can change the size, and nobody can take that back.
fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

impl Mapping {
    /// New memory of `len` bytes, all zero and all there.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn create(name: &str, len: usize) -> Result<Self, MemoryError> {
        let fault = |what: &'static str| move |errno: Errno| MemoryError::System { what, len, errno };
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(fault("memfd_create"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(fault("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, seals()).map_err(fault("F_ADD_SEALS"))?;
        let mapping = Self::map(fd, len)?;
        mapping.prefault();
        Ok(mapping)
    }

    /// The memory of a peer that sent its descriptor, which must be sealed and hold `len` bytes or more.
    ///
    /// # Errors
    /// It is not what it should be, or cannot be mapped.
    pub fn open(fd: OwnedFd, len: usize) -> Result<Self, MemoryError> {
        let has = rustix::fs::fcntl_get_seals(&fd).map_err(|_| MemoryError::NotSealed)?;
        if !has.contains(SealFlags::SHRINK) {
            return Err(MemoryError::NotSealed);
        }
        let found = rustix::fs::fstat(&fd)
            .map_err(|errno| MemoryError::System { what: "fstat", len, errno })?
            .st_size as u64;
        if len == 0 || found < len as u64 {
            return Err(MemoryError::TooShort { found, wanted: len as u64 });
        }
        Self::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> Result<Self, MemoryError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0) }
            .map_err(|errno| MemoryError::System { what: "mmap", len, errno })?;
        let base = NonNull::new(base.cast()).ok_or(MemoryError::Empty)?;
        Ok(Self { fd, base, len })
    }

    /// Makes every page present. Where the kernel is too old for that, the first touch does it.
    pub(crate) fn prefault(&self) {
        // SAFETY: the range is our own mapping, and populating it changes no byte.
        let _ =
            unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) };
    }

    /// Whether a descriptor is of the same memory.
    pub(crate) fn is_of(&self, fd: impl AsFd) -> bool {
        let name = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
        name(self.fd.as_fd()).is_some_and(|ours| name(fd.as_fd()) == Some(ours))
    }

    /// Where it begins in this process.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is no empty mapping.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The descriptor, for a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and whoever holds an address in it holds the mapping too.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
