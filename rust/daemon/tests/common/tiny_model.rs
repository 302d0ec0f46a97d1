//! Directories of models that are nothing but a small tokenizer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Map, Value, json};

/// Ends an output.
pub(crate) const END: u32 = 256;
/// Tokens that prompt and output may have together.
pub(crate) const CONTEXT: u32 = 512;

const CHAT: &str = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}\
                    {% if messages[0].role == 'assistant' %}{{ raise_exception('begin with a user') }}{% endif %}\
                    <assistant>";

/// A directory of one model; dropped, it is removed.
#[derive(Debug)]
pub(crate) struct ModelDirectory(PathBuf);

impl ModelDirectory {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn write(files: &[(&str, Value)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("splitcore-model-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        for (name, content) in files {
            std::fs::write(path.join(name), content.to_string()).unwrap();
        }
        Self(path)
    }

    /// One token for each byte, of its own number, and `END`.
    pub(crate) fn of_bytes() -> Self {
        let mut vocabulary = Map::new();
        let mut others = 256..;
        for byte in 0..=255_u8 {
            let shown = matches!(byte, 33..=126 | 161..=172 | 174..=255);
            let char = if shown { char::from(byte) } else { char::from_u32(others.next().unwrap()).unwrap() };
            vocabulary.insert(char.to_string(), json!(byte));
        }
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [added(END, "<|end|>")],
            "pre_tokenizer": bytes,
            "decoder": bytes,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        });
        let config = json!({"max_position_embeddings": CONTEXT, "vocab_size": 257, "eos_token_id": END});
        let words = json!({"eos_token": "<|end|>", "chat_template": [{"name": "default", "template": CHAT}]});
        Self::write(&[("tokenizer.json", tokenizer), ("config.json", config), ("tokenizer_config.json", words)])
    }

    /// As Llama's: spaces are part of words, what is unknown is in bytes; without a chat template.
    pub(crate) fn of_words() -> Self {
        let mut words = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
        words.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
        words.extend(["\u{2581}", "a", "b", "c", "\u{2581}a"].map(str::to_owned));
        let vocabulary: Map<String, Value> = words.into_iter().zip(0..).map(|(word, id)| (word, json!(id))).collect();
        let space = json!({"String": "\u{2581}"});
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            ]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": space, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {
                "type": "BPE", "vocab": vocabulary, "merges": [["\u{2581}", "a"]],
                "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true,
            },
        });
        let config = json!({"text_config": {"max_position_embeddings": CONTEXT, "eos_token_id": [2]}});
        Self::write(&[("tokenizer.json", tokenizer), ("config.json", config)])
    }
}

impl Drop for ModelDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn added(id: u32, content: &str) -> Value {
    json!({
        "id": id, "content": content, "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}
