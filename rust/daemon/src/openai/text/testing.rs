//! Models of this module's tests.

use std::path::Path;
use std::sync::LazyLock;

use super::Model;

#[path = "../../../tests/common/tiny_model.rs"]
#[allow(clippy::unwrap_used, dead_code, reason = "each test uses its part; what is missing fails it")]
mod tiny_model;

fn written(name: &str, write: fn(&Path)) -> Model {
    let directory = std::env::temp_dir().join(format!("splitcore-{name}-{}", std::process::id()));
    write(&directory);
    let model = Model::load(&directory).expect("a model");
    std::fs::remove_dir_all(directory).expect("its own folder");
    model
}

/// One token for each byte, and one that ends.
pub(crate) fn bytes_model() -> &'static Model {
    static MODEL: LazyLock<Model> = LazyLock::new(|| written("bytes", tiny_model::of_bytes));
    &MODEL
}

/// As Llama's.
pub(crate) fn spaced_model() -> &'static Model {
    static MODEL: LazyLock<Model> = LazyLock::new(|| written("words", tiny_model::of_words));
    &MODEL
}

/// A real one, where the engine's tests have put it.
pub(crate) fn real_model() -> Option<&'static Model> {
    static MODEL: LazyLock<Option<Model>> = LazyLock::new(|| {
        let home = std::env::var_os("HOME")?;
        let directory = Path::new(&home).join(".cache/splitcore/smollm2-135m-instruct-1");
        directory.join("tokenizer.json").exists().then(|| Model::load(&directory).expect("a model"))
    });
    MODEL.as_ref()
}
