//! Models of this module's tests.

use std::sync::LazyLock;

use super::Model;
use tiny_model::ModelDirectory;

#[path = "../../../tests/common/tiny_model.rs"]
#[allow(clippy::unwrap_used, dead_code, reason = "each test uses its part; what is missing fails it")]
mod tiny_model;

/// One token for each byte, and one that ends.
pub(crate) fn bytes_model() -> &'static Model {
    static MODEL: LazyLock<Model> = LazyLock::new(|| Model::load(ModelDirectory::of_bytes().path()).expect("a model"));
    &MODEL
}

/// As Llama's.
pub(crate) fn spaced_model() -> &'static Model {
    static MODEL: LazyLock<Model> = LazyLock::new(|| Model::load(ModelDirectory::of_words().path()).expect("a model"));
    &MODEL
}

/// A real one, where the engine's tests have put it.
pub(crate) fn real_model() -> Option<&'static Model> {
    static MODEL: LazyLock<Option<Model>> = LazyLock::new(|| {
        let home = std::env::var_os("HOME")?;
        let directory = std::path::Path::new(&home).join(".cache/splitcore/smollm2-135m-instruct-1");
        directory.join("tokenizer.json").exists().then(|| Model::load(&directory).expect("a model"))
    });
    MODEL.as_ref()
}
