//! Hardware and model catalogue.
