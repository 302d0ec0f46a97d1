//! The scheduler core.
