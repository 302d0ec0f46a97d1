//! The CUDA driver behind the trait: one device with its primary context, which engines in the process share.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;
use std::ptr;
use std::sync::OnceLock;

use super::driver::{Allocation, Driver, Event, EventUse, Fault, Handle, Stream};
use super::symbols::{
    Address, Answer, DEVICE_IPC_EVENTS, EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS,
    IPC_LAZY_PEER_ACCESS, NOT_READY, POINTER_LEGACY_IPC, POINTER_ORDINAL, RawContext, RawDevice, RawEvent,
    RawHandle, RawStream, RawUuid, STREAM_NON_BLOCKING, Symbols,
};

/// The driver library, initialised; or why there is none. Never unloaded, as other code of the process may use it.
fn library() -> Result<&'static Symbols, String> {
    static LIBRARY: OnceLock<Result<Symbols, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| {
        let symbols = Symbols::load().map_err(|why| format!("no CUDA driver: {why}"))?;
        // SAFETY: the call takes a number that must be 0.
        let answer = unsafe { (symbols.init)(0) };
        told(&symbols, "cuInit", answer).map_err(|fault| format!("no CUDA device: {fault}"))?;
        Ok(symbols)
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// An answer as a result.
fn told(symbols: &Symbols, what: &'static str, answer: Answer) -> Result<(), Fault> {
    if answer == 0 { Ok(()) } else { Err(Fault { what, reason: explain(symbols, answer) }) }
}

/// The driver's own words for an answer.
fn explain(symbols: &Symbols, answer: Answer) -> String {
    let say = |call: unsafe extern "C" fn(Answer, *mut *const c_char) -> Answer| {
        let mut text = ptr::null();
        // SAFETY: the call writes a pointer to a static string, or null for a number that it does not know.
        let known = unsafe { call(answer, &raw mut text) } == 0 && !text.is_null();
        // SAFETY: a static string of the driver's, which ends in a zero byte.
        known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    match (say(symbols.error_name), say(symbols.error_text)) {
        (Some(name), Some(text)) => format!("{name} ({text})"),
        (Some(name), None) => name,
        (None, _) => format!("error {answer}"),
    }
}

/// How many devices this process sees.
///
/// # Errors
/// There is no driver, or no device.
pub(super) fn count() -> Result<i32, String> {
    let symbols = library()?;
    let mut count: c_int = 0;
    // SAFETY: the call writes an int.
    let answer = unsafe { (symbols.device_count)(&raw mut count) };
    told(symbols, "cuDeviceGetCount", answer).map_err(|fault| fault.to_string())?;
    if count > 0 { Ok(count) } else { Err("no CUDA device: the driver sees none".to_owned()) }
}

/// A device of this process.
pub(super) struct Gpu {
    symbols: &'static Symbols,
    device: RawDevice,
    ordinal: i32,
    context: RawContext,
    name: String,
    process: u64,
}

// SAFETY: a context may be used from any thread that makes it current, which every call here does.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver locks what its calls share.
unsafe impl Sync for Gpu {}

/// The device of an ordinal, and its name.
fn identify(symbols: &Symbols, ordinal: i32) -> Result<(RawDevice, String), Fault> {
    let mut device: RawDevice = 0;
    // SAFETY: the call writes a device number.
    let answer = unsafe { (symbols.device)(&raw mut device, ordinal) };
    told(symbols, "cuDeviceGet", answer)?;
    let mut uuid = RawUuid([0; 16]);
    // SAFETY: the call writes sixteen bytes.
    let answer = unsafe { (symbols.device_uuid)(&raw mut uuid, device) };
    told(symbols, "cuDeviceGetUuid_v2", answer)?;
    let mut name = "GPU".to_owned();
    for (at, byte) in uuid.0.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&at) {
            name.push('-');
        }
        let _ = write!(name, "{byte:02x}");
    }
    Ok((device, name))
}

impl Gpu {
    /// The device of an ordinal.
    ///
    /// # Errors
    /// There is no driver, no such device, or it cannot share events between processes.
    pub(super) fn new(ordinal: i32, process: u64) -> Result<Self, String> {
        let devices = count()?;
        if !(0..devices).contains(&ordinal) {
            return Err(format!("no CUDA device {ordinal}: the driver sees {devices}"));
        }
        let symbols = library()?;
        let (device, name) = identify(symbols, ordinal).map_err(|fault| fault.to_string())?;
        let mut shares: c_int = 0;
        // SAFETY: the call writes an int.
        let answer = unsafe { (symbols.device_attribute)(&raw mut shares, DEVICE_IPC_EVENTS, device) };
        // Drivers from before this attribute share events wherever they share memory.
        if answer == 0 && shares == 0 {
            return Err(format!("{name} cannot share memory and events between processes"));
        }
        let mut context = ptr::null_mut();
        // SAFETY: the call writes a context, which is released when this is dropped.
        let answer = unsafe { (symbols.context_retain)(&raw mut context, device) };
        told(symbols, "cuDevicePrimaryCtxRetain", answer).map_err(|fault| fault.to_string())?;
        Ok(Self { symbols, device, ordinal, context, name, process })
    }

    /// Makes a call with the context current, and leaves the thread's context as it was.
    fn call(&self, what: &'static str, call: impl FnOnce(&Symbols) -> Answer) -> Result<(), Fault> {
        // SAFETY: the context is retained as long as this lives.
        told(self.symbols, "cuCtxPushCurrent", unsafe { (self.symbols.context_push)(self.context) })?;
        let answer = call(self.symbols);
        let mut popped = ptr::null_mut();
        // SAFETY: takes off what was put on above.
        let _ = unsafe { (self.symbols.context_pop)(&raw mut popped) };
        told(self.symbols, what, answer)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once in `new`.
        let _ = unsafe { (self.symbols.context_release)(self.device) };
    }
}

fn raw_stream(stream: Stream) -> RawStream {
    ptr::with_exposed_provenance_mut(stream.0 as usize)
}

fn raw_event(event: Event) -> RawEvent {
    ptr::with_exposed_provenance_mut(event.0 as usize)
}

impl Driver for Gpu {
    fn process(&self) -> u64 {
        self.process
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn describe(&self) -> String {
        const ROOM: c_int = 128;
        let (mut text, mut version): ([c_char; ROOM as usize], c_int) = ([0; ROOM as usize], 0);
        // SAFETY: the call writes at most as many characters as there is room for, the last a zero.
        let named = unsafe { (self.symbols.device_name)(text.as_mut_ptr(), ROOM, self.device) } == 0;
        // SAFETY: the call writes an int.
        let _ = unsafe { (self.symbols.driver_version)(&raw mut version) };
        let bytes: Vec<u8> =
            text.iter().take_while(|&&letter| letter != 0).map(|&letter| letter as u8).collect();
        let name =
            if named { String::from_utf8_lossy(&bytes).into_owned() } else { "unnamed device".to_owned() };
        format!("{name}, CUDA driver {}.{}", version / 1000, version % 1000 / 10)
    }

    fn ordinal(&self) -> i32 {
        self.ordinal
    }

    fn reaches(&self, name: &str) -> Result<(), String> {
        if name == self.name {
            return Ok(());
        }
        for ordinal in 0..count()? {
            let (device, found) = identify(self.symbols, ordinal).map_err(|fault| fault.to_string())?;
            if found != name {
                continue;
            }
            let mut can: c_int = 0;
            // SAFETY: the call writes an int.
            let answer = unsafe { (self.symbols.can_access_peer)(&raw mut can, self.device, device) };
            told(self.symbols, "cuDeviceCanAccessPeer", answer).map_err(|fault| fault.to_string())?;
            return if can == 0 { Err(format!("{} cannot access {name}", self.name)) } else { Ok(()) };
        }
        Err(format!("{name} is not visible to this process (CUDA_VISIBLE_DEVICES)"))
    }

    fn allocate(&self, bytes: u64) -> Result<u64, Fault> {
        let mut base: Address = 0;
        // SAFETY: the call writes an address.
        self.call("cuMemAlloc", |cuda| unsafe { (cuda.allocate)(&raw mut base, bytes as usize) })?;
        // SAFETY: the memory was just allocated, and has so many bytes.
        self.call("cuMemsetD8", |cuda| unsafe { (cuda.fill)(base, 0, bytes as usize) })
            .and_then(|()| self.drain(Stream(0)))
            .inspect_err(|_| drop(self.free(base)))?;
        Ok(base)
    }

    fn free(&self, base: u64) -> Result<(), Fault> {
        // SAFETY: an address of `allocate`, freed once by its owner.
        self.call("cuMemFree", |cuda| unsafe { (cuda.free)(base) })
    }

    fn allocation(&self, pointer: u64) -> Result<Allocation, Fault> {
        let (mut base, mut len): (Address, usize) = (0, 0);
        let (mut ordinal, mut shareable): (c_int, c_int) = (-1, 0);
        self.call("cuMemGetAddressRange", |cuda| {
            // SAFETY: the call writes an address and a size.
            unsafe { (cuda.address_range)(&raw mut base, &raw mut len, pointer) }
        })?;
        self.call("cuPointerGetAttribute", |cuda| {
            let place = (&raw mut shareable).cast();
            // SAFETY: this attribute is a bool, and the place has room for an int.
            unsafe { (cuda.pointer_attribute)(place, POINTER_LEGACY_IPC, pointer) }
        })?;
        self.call("cuPointerGetAttribute", |cuda| {
            // SAFETY: this attribute is an int.
            unsafe { (cuda.pointer_attribute)((&raw mut ordinal).cast(), POINTER_ORDINAL, pointer) }
        })?;
        Ok(Allocation { base, len: len as u64, ordinal, shareable: shareable != 0 })
    }

    fn export(&self, base: u64) -> Result<Handle, Fault> {
        let mut handle = RawHandle([0; 64]);
        // SAFETY: the call writes 64 bytes.
        self.call("cuIpcGetMemHandle", |cuda| unsafe { (cuda.ipc_export)(&raw mut handle, base) })?;
        Ok(Handle(handle.0))
    }

    fn open(&self, handle: &Handle) -> Result<u64, Fault> {
        let mut base: Address = 0;
        self.call("cuIpcOpenMemHandle", |cuda| {
            // SAFETY: the call takes the 64 bytes by value and writes an address.
            unsafe { (cuda.ipc_open)(&raw mut base, RawHandle(handle.0), IPC_LAZY_PEER_ACCESS) }
        })?;
        Ok(base)
    }

    fn close(&self, base: u64) -> Result<(), Fault> {
        // SAFETY: an address of `open`, closed once for each time that it was opened.
        self.call("cuIpcCloseMemHandle", |cuda| unsafe { (cuda.ipc_close)(base) })
    }

    fn stream(&self) -> Result<Stream, Fault> {
        let mut stream = ptr::null_mut();
        self.call("cuStreamCreate", |cuda| {
            // SAFETY: the call writes a stream.
            unsafe { (cuda.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) }
        })?;
        Ok(Stream(stream.expose_provenance() as u64))
    }

    fn end_stream(&self, stream: Stream) -> Result<(), Fault> {
        // SAFETY: a stream of ours, ended once by its owner.
        self.call("cuStreamDestroy", |cuda| unsafe { (cuda.stream_destroy)(raw_stream(stream)) })
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Fault> {
        self.call("cuMemcpyDtoDAsync", |cuda| {
            // SAFETY: both ranges were checked against their allocations by the caller.
            unsafe { (cuda.copy)(to, from, bytes as usize, raw_stream(stream)) }
        })
    }

    fn drain(&self, stream: Stream) -> Result<(), Fault> {
        // SAFETY: a stream that lives.
        self.call("cuStreamSynchronize", |cuda| unsafe { (cuda.stream_synchronize)(raw_stream(stream)) })
    }

    fn event(&self, for_whom: EventUse) -> Result<Event, Fault> {
        let flags = match for_whom {
            EventUse::Here => EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING,
            EventUse::Shared => EVENT_DISABLE_TIMING | EVENT_INTERPROCESS,
        };
        let mut event = ptr::null_mut();
        // SAFETY: the call writes an event.
        self.call("cuEventCreate", |cuda| unsafe { (cuda.event_create)(&raw mut event, flags) })?;
        Ok(Event(event.expose_provenance() as u64))
    }

    fn end_event(&self, event: Event) -> Result<(), Fault> {
        // SAFETY: an event of ours, ended once by its owner.
        self.call("cuEventDestroy", |cuda| unsafe { (cuda.event_destroy)(raw_event(event)) })
    }

    fn export_event(&self, event: Event) -> Result<Handle, Fault> {
        let mut handle = RawHandle([0; 64]);
        self.call("cuIpcGetEventHandle", |cuda| {
            // SAFETY: the call writes 64 bytes; the event was made for this.
            unsafe { (cuda.ipc_export_event)(&raw mut handle, raw_event(event)) }
        })?;
        Ok(Handle(handle.0))
    }

    fn open_event(&self, handle: &Handle) -> Result<Event, Fault> {
        let mut event = ptr::null_mut();
        self.call("cuIpcOpenEventHandle", |cuda| {
            // SAFETY: the call takes the 64 bytes by value and writes an event.
            unsafe { (cuda.ipc_open_event)(&raw mut event, RawHandle(handle.0)) }
        })?;
        Ok(Event(event.expose_provenance() as u64))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), Fault> {
        // SAFETY: an event and a stream that live.
        self.call("cuEventRecord", |cuda| unsafe {
            (cuda.event_record)(raw_event(event), raw_stream(stream))
        })
    }

    fn hold(&self, stream: Stream, event: Event) -> Result<(), Fault> {
        self.call("cuStreamWaitEvent", |cuda| {
            // SAFETY: an event and a stream that live; there are no flags.
            unsafe { (cuda.stream_wait_event)(raw_stream(stream), raw_event(event), 0) }
        })
    }

    fn reached(&self, event: Event) -> Result<bool, Fault> {
        let mut done = true;
        self.call("cuEventQuery", |cuda| {
            // SAFETY: an event that lives.
            let answer = unsafe { (cuda.event_query)(raw_event(event)) };
            done = answer == 0;
            if answer == NOT_READY { 0 } else { answer }
        })?;
        Ok(done)
    }

    fn wait(&self, event: Event) -> Result<(), Fault> {
        // SAFETY: an event that lives.
        self.call("cuEventSynchronize", |cuda| unsafe { (cuda.event_synchronize)(raw_event(event)) })
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.call("cuMemcpyHtoD", |cuda| {
            // SAFETY: the slice has so many bytes, and the caller checked the range on the device.
            unsafe { (cuda.write)(to, bytes.as_ptr().cast(), bytes.len()) }
        })?;
        // The call may return while the last of it is on its way.
        self.drain(Stream(0))
    }

    fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.call("cuMemcpyDtoH", |cuda| {
            // SAFETY: the slice has so many bytes, and the caller checked the range on the device.
            unsafe { (cuda.read)(bytes.as_mut_ptr().cast(), from, bytes.len()) }
        })
    }
}
