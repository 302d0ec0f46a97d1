//! Event queue.
