//! Cost models.
