//! Directories of models that are nothing but a small tokenizer.

use std::path::Path;

use serde_json::{Map, Value, json};

/// Ends an output.
pub(crate) const END: u32 = 256;
/// Tokens that prompt and output may have together.
pub(crate) const CONTEXT: u32 = 512;

const CHAT: &str = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}\
                    {% if messages[0].role == 'assistant' %}{{ raise_exception('begin with a user') }}{% endif %}\
                    <assistant>";

/// Writes files whole, so that who writes them as well at the same time does no harm.
fn write(directory: &Path, files: &[(&str, Value)]) {
    std::fs::create_dir_all(directory).unwrap();
    for (name, content) in files {
        let part = directory.join(format!("{name}.{}", std::process::id()));
        std::fs::write(&part, content.to_string()).unwrap();
        std::fs::rename(part, directory.join(name)).unwrap();
    }
}

/// One token for each byte, of its own number, and `END`.
pub(crate) fn of_bytes(directory: &Path) {
    let mut vocabulary = Map::new();
    let mut others = 256..;
    for byte in 0..=255_u8 {
        let shown = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let char = if shown { char::from(byte) } else { char::from_u32(others.next().unwrap()).unwrap() };
        vocabulary.insert(char.to_string(), json!(byte));
    }
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [added(END, "<|end|>")],
        "pre_tokenizer": bytes,
        "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let config = json!({"max_position_embeddings": CONTEXT, "vocab_size": 257, "eos_token_id": END});
    let words = json!({"eos_token": "<|end|>", "chat_template": [{"name": "default", "template": CHAT}]});
    write(
        directory,
        &[("tokenizer.json", tokenizer), ("config.json", config), ("tokenizer_config.json", words)],
    );
}

/// As Llama's: spaces are part of words, what is unknown is in bytes; without a chat template.
pub(crate) fn of_words(directory: &Path) {
    let mut words = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    words.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
    words.extend(["\u{2581}", "a", "b", "c", "\u{2581}a"].map(str::to_owned));
    let vocabulary: Map<String, Value> =
        words.into_iter().zip(0..).map(|(word, id)| (word, json!(id))).collect();
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
    write(directory, &[("tokenizer.json", tokenizer), ("config.json", config)]);
}

fn added(id: u32, content: &str) -> Value {
    json!({
        "id": id, "content": content, "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}
