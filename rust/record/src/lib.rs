//! Event logs of the two state machines: written as they run, read and replayed afterwards.

#![forbid(unsafe_code)]
