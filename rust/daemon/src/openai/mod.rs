//! `OpenAI`'s interface: completions and chats, for a service that brings its own workers.

pub(crate) mod text;
