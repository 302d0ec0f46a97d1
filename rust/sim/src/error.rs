//! Everything that can be wrong with a run, told in one line.

/// An error a user can act on: it names where, which field, what was expected and what was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// A field of an input file.
    #[error("{file}:{line}: {field}: expected {expected}, got {got}")]
    Input {
        /// Path as the user wrote it.
        file: String,
        /// Line number, from 1 (the header is line 1).
        line: u64,
        /// Column or key.
        field: String,
        /// What would have been accepted.
        expected: String,
        /// What was found.
        got: String,
    },
    /// An option of the run (command line or Python).
    #[error("{option}: expected {expected}, got {got}")]
    Config {
        /// Option name without dashes, as in `rate`.
        option: &'static str,
        /// What would have been accepted.
        expected: String,
        /// What was given.
        got: String,
    },
    /// A file that cannot be read or written.
    #[error("{file}: {reason}")]
    Io {
        /// Path as the user wrote it.
        file: String,
        /// The operating system's reason.
        reason: String,
    },
    /// The watchdog: events go on, but the run does not.
    #[error(
        "the run goes in circles, as {circle} while {pending} requests wait; request {request} is stuck: {state}"
    )]
    Stuck {
        /// How that shows.
        circle: String,
        /// Requests that have arrived and not ended.
        pending: u64,
        /// The oldest of them.
        request: u64,
        /// What it waits for.
        state: String,
    },
    /// The core refused an event or failed its own recount: a bug, to be reported with the run's options.
    #[error("internal error: {reason}")]
    Internal {
        /// What does not hold.
        reason: String,
    },
    /// The caller asked to stop (Ctrl-C).
    #[error("interrupted")]
    Interrupted,
}

impl SimError {
    /// A [`SimError::Config`] from anything printable.
    pub fn config(option: &'static str, expected: impl Into<String>, got: impl std::fmt::Display) -> Self {
        Self::Config { option, expected: expected.into(), got: got.to_string() }
    }
}
