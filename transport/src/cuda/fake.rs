//! A device that is none: it keeps the driver's rules, breaks off where one is broken, and writes down what it is
//! asked. Its streams run only when somebody waits for them, which is as late as a real device's may.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::driver::{Allocation, Driver, Event, EventUse, Fault, HANDLE_BYTES, Handle, Stream};

/// What the device was asked, as far as its order matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Allocated {
        base: u64,
    },
    Freed {
        base: u64,
    },
    Opened {
        process: u64,
        base: u64,
    },
    Closed {
        process: u64,
        base: u64,
    },
    /// By the event's own number, whatever a process calls it.
    Recorded {
        event: u64,
    },
    Held {
        event: u64,
    },
    EventOpened {
        event: u64,
    },
    EventEnded {
        event: u64,
        exporter: bool,
    },
}

enum Op {
    Copy { process: u64, to: u64, from: u64, bytes: u64 },
    Record { event: u64, number: u64 },
    Hold { event: u64, number: u64 },
}

struct Memory {
    bytes: Vec<u8>,
    owner: u64,
    opened: usize,
}

#[derive(Default)]
struct Mark {
    owner: u64,
    shared: bool,
    recorded: u64,
    reached: u64,
    opened: usize,
    ended: bool,
}

#[derive(Default)]
struct State {
    asked: Vec<Asked>,
    memory: BTreeMap<u64, Memory>,
    /// Where processes have others' memory: by process and address, the base.
    mapped: BTreeMap<(u64, u64), u64>,
    streams: BTreeMap<u64, VecDeque<Op>>,
    marks: BTreeMap<u64, Mark>,
    /// What processes call events: by process and name, its own number.
    names: BTreeMap<(u64, u64), u64>,
    last: u64,
    frozen: bool,
    broken: Vec<&'static str>,
    failing: Option<&'static str>,
    /// Bytes of memory that opening an unknown handle makes up, for a process that is alone with its device.
    made_up: Option<usize>,
}

/// The device, for all its processes.
#[derive(Default)]
pub(super) struct Hardware {
    state: Mutex<State>,
    changed: Condvar,
}

/// The device as one process has it.
pub(super) struct FakeDriver {
    pub(super) hardware: Arc<Hardware>,
    pub(super) process: u64,
}

const SPAN: u64 = 1 << 32;

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last * SPAN
    }

    fn fault<T>(what: &'static str, reason: &str) -> Result<T, Fault> {
        Err(Fault { what, reason: reason.to_owned() })
    }

    fn may(&mut self, what: &'static str) -> Result<(), Fault> {
        if self.failing == Some(what) { Self::fault(what, "CUDA_ERROR_UNKNOWN (made up)") } else { Ok(()) }
    }

    /// The allocation that a process' address lies in.
    fn place(&self, process: u64, address: u64) -> (u64, usize) {
        let base = address / SPAN * SPAN;
        let owned = self.memory.get(&base).filter(|memory| memory.owner == process).map(|_| base);
        let base = owned.or_else(|| self.mapped.get(&(process, base)).copied());
        (base.expect("an address that is open in this process"), (address % SPAN) as usize)
    }

    fn event(&self, process: u64, event: Event) -> u64 {
        self.names[&(process, event.0)]
    }

    /// Writes down a rule that was broken, and breaks off: a thread's panic alone would go unseen.
    fn rule(&mut self, kept: bool, rule: &'static str) {
        if !kept {
            self.broken.push(rule);
            panic!("{rule}");
        }
    }

    /// Runs a stream as far as it can, and others only as far as it waits for them.
    fn run(&mut self, stream: u64) {
        while !self.frozen {
            let front = self.streams.get(&stream).and_then(VecDeque::front);
            match front {
                Some(Op::Hold { event, number }) if self.marks[event].reached < *number => {
                    let (event, number) = (*event, *number);
                    self.run_to(event, number);
                    if self.marks[&event].reached < number {
                        return;
                    }
                }
                Some(_) => drop(self.step(stream)),
                None => return,
            }
        }
    }

    /// Runs the stream that an event was recorded in.
    fn run_to(&mut self, event: u64, number: u64) {
        let is_it = |op: &Op| matches!(op, Op::Record { event: e, number: n } if (*e, *n) == (event, number));
        let recorded = self.streams.iter().find(|(_, ops)| ops.iter().any(is_it)).map(|(stream, _)| *stream);
        if let Some(stream) = recorded {
            self.run(stream);
        }
    }

    fn step(&mut self, stream: u64) -> bool {
        match self.streams.get(&stream).and_then(VecDeque::front) {
            None => return false,
            Some(Op::Hold { event, number }) if self.marks[event].reached < *number => return false,
            Some(_) => {}
        }
        match self.streams.get_mut(&stream).and_then(VecDeque::pop_front) {
            Some(Op::Copy { process, to, from, bytes }) => {
                let (source, start) = self.place(process, from);
                let data = self.memory[&source].bytes[start..start + bytes as usize].to_vec();
                let (target, start) = self.place(process, to);
                let memory = self.memory.get_mut(&target).expect("memory that is not freed");
                memory.bytes[start..start + data.len()].copy_from_slice(&data);
            }
            Some(Op::Record { event, number }) => {
                let mark = self.marks.get_mut(&event).expect("an event");
                mark.reached = mark.reached.max(number);
            }
            Some(Op::Hold { .. }) | None => {}
        }
        true
    }
}

impl Hardware {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that was asked so far.
    pub(super) fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    /// Lets no stream run, until [`thaw`](Self::thaw).
    pub(super) fn freeze(&self) {
        self.state().frozen = true;
    }

    pub(super) fn thaw(&self) {
        self.state().frozen = false;
        self.changed.notify_all();
    }

    /// Lets a call fail from now on, or none.
    pub(super) fn fail(&self, what: Option<&'static str>) {
        self.state().failing = what;
    }

    pub(super) fn make_up(&self, bytes: usize) {
        let mut state = self.state();
        state.made_up = Some(bytes);
        // What the other world numbers is below.
        state.last = 1 << 16;
    }

    /// Runs until `done`, which is at once unless it is frozen.
    fn until(&self, run: impl Fn(&mut State), done: impl Fn(&State) -> bool) {
        let mut state = self.state();
        run(&mut state);
        while !done(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            run(&mut state);
        }
    }

    /// Whether it is asked something within ten seconds.
    pub(super) fn is_asked(&self, what: Asked) -> bool {
        let unasked = |state: &mut State| !state.asked.contains(&what);
        let within = Duration::from_secs(10);
        let waited = self.changed.wait_timeout_while(self.state(), within, unasked);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Whether no rule was broken, by any thread.
    pub(super) fn kept_the_rules(&self) {
        assert_eq!(self.state().broken, Vec::<&str>::new());
    }

    /// What is open of others' memory and events, and what is allocated.
    pub(super) fn left_over(&self) -> (usize, usize, usize) {
        let state = self.state();
        let events = state.names.len();
        (state.mapped.len(), events, state.memory.len())
    }
}

fn handle_of(number: u64) -> Handle {
    let mut bytes = [0xa5; HANDLE_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Handle(bytes)
}

fn number_of(handle: &Handle) -> u64 {
    u64::from_le_bytes(handle.0[..8].try_into().expect("eight bytes"))
}

impl Driver for FakeDriver {
    fn process(&self) -> u64 {
        self.process
    }

    fn name(&self) -> String {
        "GPU-fake".to_owned()
    }

    fn describe(&self) -> String {
        "a device that is none".to_owned()
    }

    fn ordinal(&self) -> i32 {
        0
    }

    fn reaches(&self, name: &str) -> Result<(), String> {
        if name == "GPU-fake" { Ok(()) } else { Err(format!("{name} is not visible")) }
    }

    fn allocate(&self, bytes: u64) -> Result<u64, Fault> {
        let mut state = self.hardware.state();
        let base = state.next();
        let memory = Memory { bytes: vec![0; bytes as usize], owner: self.process, opened: 0 };
        state.memory.insert(base, memory);
        state.asked.push(Asked::Allocated { base });
        Ok(base)
    }

    fn free(&self, base: u64) -> Result<(), Fault> {
        let mut state = self.hardware.state();
        let memory = state.memory.remove(&base).expect("memory is freed once");
        state.rule(memory.opened == 0, "memory is freed while another process has it open");
        state.asked.push(Asked::Freed { base });
        self.hardware.changed.notify_all();
        Ok(())
    }

    fn allocation(&self, pointer: u64) -> Result<Allocation, Fault> {
        let state = self.hardware.state();
        let base = pointer / SPAN * SPAN;
        let len = state.memory[&base].bytes.len() as u64;
        Ok(Allocation { base, len, ordinal: 0, shareable: state.failing != Some("shareable") })
    }

    fn export(&self, base: u64) -> Result<Handle, Fault> {
        assert_eq!(base % SPAN, 0, "a handle is of the base of an allocation");
        Ok(handle_of(base))
    }

    fn open(&self, handle: &Handle) -> Result<u64, Fault> {
        let mut state = self.hardware.state();
        state.may("cuIpcOpenMemHandle")?;
        let base = number_of(handle);
        if let Some(bytes) = state.made_up {
            let memory = Memory { bytes: vec![0; bytes], owner: 0, opened: 0 };
            state.memory.entry(base).or_insert(memory);
        }
        let at = state.next();
        let memory = state.memory.get_mut(&base).expect("memory that is there");
        memory.opened += 1;
        let elsewhere = memory.owner != self.process;
        state.rule(elsewhere, "a process opens its own memory");
        let again = state.mapped.iter().any(|((process, _), of)| *process == self.process && *of == base);
        state.rule(!again, "memory is opened twice");
        state.mapped.insert((self.process, at), base);
        state.asked.push(Asked::Opened { process: self.process, base });
        Ok(at)
    }

    fn close(&self, at: u64) -> Result<(), Fault> {
        let mut state = self.hardware.state();
        let base = state.mapped.remove(&(self.process, at));
        state.rule(base.is_some(), "a mapping is closed once");
        let base = base.unwrap_or_default();
        state.memory.get_mut(&base).expect("memory is freed after it is closed").opened -= 1;
        state.asked.push(Asked::Closed { process: self.process, base });
        self.hardware.changed.notify_all();
        Ok(())
    }

    fn stream(&self) -> Result<Stream, Fault> {
        let mut state = self.hardware.state();
        let stream = state.next();
        state.streams.insert(stream, VecDeque::new());
        Ok(Stream(stream))
    }

    fn end_stream(&self, stream: Stream) -> Result<(), Fault> {
        let mut state = self.hardware.state();
        let left = state.streams.remove(&stream.0).expect("a stream ends once");
        state.rule(left.is_empty(), "a stream ends while it has work");
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Fault> {
        let mut state = self.hardware.state();
        state.may("cuMemcpyDtoDAsync")?;
        let op = Op::Copy { process: self.process, to, from, bytes };
        state.streams.get_mut(&stream.0).expect("a stream").push_back(op);
        Ok(())
    }

    fn drain(&self, stream: Stream) -> Result<(), Fault> {
        let is_empty = |state: &State| state.streams.get(&stream.0).is_none_or(VecDeque::is_empty);
        self.hardware.until(|state| state.run(stream.0), is_empty);
        Ok(())
    }

    fn event(&self, for_whom: EventUse) -> Result<Event, Fault> {
        let mut state = self.hardware.state();
        let event = state.next();
        let shared = for_whom == EventUse::Shared;
        state.marks.insert(event, Mark { owner: self.process, shared, ..Mark::default() });
        state.names.insert((self.process, event), event);
        Ok(Event(event))
    }

    fn end_event(&self, event: Event) -> Result<(), Fault> {
        let mut state = self.hardware.state();
        let number = state.names.remove(&(self.process, event.0)).expect("an event ends once");
        let mark = state.marks.get_mut(&number).expect("an event");
        let exporter = mark.owner == self.process;
        let (shared, open) = (mark.shared, mark.opened);
        if exporter {
            mark.ended = true;
            state.rule(open == 0, "an event ends while another process has it open");
        } else {
            mark.opened -= 1;
        }
        if shared {
            state.asked.push(Asked::EventEnded { event: number, exporter });
        }
        Ok(())
    }

    fn export_event(&self, event: Event) -> Result<Handle, Fault> {
        let state = self.hardware.state();
        assert!(state.marks[&event.0].shared, "only a shared event has a name for others");
        Ok(handle_of(event.0))
    }

    fn open_event(&self, handle: &Handle) -> Result<Event, Fault> {
        let mut state = self.hardware.state();
        let number = number_of(handle);
        if state.made_up.is_some() {
            state.marks.entry(number).or_insert(Mark { shared: true, ..Mark::default() });
        }
        let name = state.next();
        let mark = state.marks.get_mut(&number).expect("an event");
        mark.opened += 1;
        let fits = !mark.ended && mark.owner != self.process;
        state.rule(fits, "an event is opened elsewhere, while it is there");
        state.names.insert((self.process, name), number);
        state.asked.push(Asked::EventOpened { event: number });
        Ok(Event(name))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), Fault> {
        let mut state = self.hardware.state();
        let number = state.event(self.process, event);
        if state.marks[&number].shared {
            state.may("cuEventRecord")?;
            let waits = state.streams.values().flatten();
            let is_awaited = |op: &Op| matches!(op, Op::Hold { event, .. } if *event == number);
            let awaited = waits.into_iter().any(is_awaited);
            state.rule(!awaited, "an event is used again while one waits for it");
            state.asked.push(Asked::Recorded { event: number });
        }
        let mark = state.marks.get_mut(&number).expect("an event");
        mark.recorded += 1;
        let (op, ended) = (Op::Record { event: number, number: mark.recorded }, mark.ended);
        state.rule(!ended, "an event that has ended is used");
        state.streams.get_mut(&stream.0).expect("a stream").push_back(op);
        Ok(())
    }

    fn hold(&self, stream: Stream, event: Event) -> Result<(), Fault> {
        let mut state = self.hardware.state();
        let number = state.event(self.process, event);
        let op = Op::Hold { event: number, number: state.marks[&number].recorded };
        state.streams.get_mut(&stream.0).expect("a stream").push_back(op);
        state.asked.push(Asked::Held { event: number });
        Ok(())
    }

    fn reached(&self, event: Event) -> Result<bool, Fault> {
        let mut state = self.hardware.state();
        let number = state.event(self.process, event);
        let recorded = state.marks[&number].recorded;
        state.run_to(number, recorded);
        Ok(state.marks[&number].reached >= recorded)
    }

    fn wait(&self, event: Event) -> Result<(), Fault> {
        let (number, recorded) = {
            let mut state = self.hardware.state();
            state.may("cuEventSynchronize")?;
            let number = state.event(self.process, event);
            (number, state.marks[&number].recorded)
        };
        let is_reached = |state: &State| state.marks[&number].reached >= recorded;
        self.hardware.until(|state| state.run_to(number, recorded), is_reached);
        Ok(())
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), Fault> {
        let mut state = self.hardware.state();
        let (base, start) = state.place(self.process, to);
        state.memory.get_mut(&base).expect("memory").bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let state = self.hardware.state();
        let (base, start) = state.place(self.process, from);
        bytes.copy_from_slice(&state.memory[&base].bytes[start..start + bytes.len()]);
        Ok(())
    }
}
