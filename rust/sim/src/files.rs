//! Opening the files that a user names.

use std::fs::File;
use std::path::Path;

use crate::SimError;

/// Opens an ordinary file. A device or a pipe may never end, and one without a writer not even opens.
///
/// # Errors
/// [`SimError::Io`] that names the file.
pub fn open_ordinary(path: &Path) -> Result<File, SimError> {
    let refuse = |reason: String| SimError::Io { file: path.display().to_string(), reason };
    let found = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
    if found.is_dir() {
        return Err(refuse("expected a file, got a folder".into()));
    }
    if !found.is_file() {
        return Err(refuse("expected an ordinary file, got a device or a pipe, which may never end".into()));
    }
    File::open(path).map_err(|error| refuse(error.to_string()))
}

/// Reads an ordinary file of text.
///
/// # Errors
/// As [`open_ordinary`]; bytes that are no UTF-8.
pub fn read_ordinary(path: &Path) -> Result<String, SimError> {
    std::io::read_to_string(open_ordinary(path)?)
        .map_err(|error| SimError::Io { file: path.display().to_string(), reason: error.to_string() })
}
