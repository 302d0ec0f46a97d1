//! Plain data from Python: what a value is decides, never what it could be taken for. A text is no switch and no number,
//! and a key that nothing reads is an error.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

/// Reads a value; the error says what was expected and what was given.
pub(crate) fn read<T: DeserializeOwned>(given: &Bound<'_, PyAny>) -> PyResult<Result<T, String>> {
    Ok(match value(given)? {
        Ok(value) => serde_json::from_value(value).map_err(|error| told(&error)),
        Err(text) => Err(text),
    })
}

/// As [`read`], and every key must be one that was read. For types whose serialised form has all of their keys.
pub(crate) fn read_all<T: DeserializeOwned + Serialize>(
    given: &Bound<'_, PyAny>,
) -> PyResult<Result<T, String>> {
    let value = match value(given)? {
        Ok(value) => value,
        Err(text) => return Ok(Err(text)),
    };
    let read: T = match serde_json::from_value(value.clone()) {
        Ok(read) => read,
        Err(error) => return Ok(Err(told(&error))),
    };
    let known = serde_json::to_value(&read).unwrap_or_default();
    Ok(match unknown_key(&value, &known) {
        Some(key) => Err(format!("unknown key {key}")),
        None => Ok(read),
    })
}

/// A value as Python writes it: a text has its quotes.
pub(crate) fn shown(given: &Bound<'_, PyAny>) -> String {
    given.repr().map_or_else(|_| "a value that cannot be shown".into(), |text| text.to_string())
}

/// serde's words for people.
fn told(error: &serde_json::Error) -> String {
    let text = error.to_string().replace('`', "");
    let text =
        text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: ")).unwrap_or(&text);
    let names = [
        ("floating point ", "the number "),
        ("integer ", "the number "),
        ("string ", "the text "),
        ("boolean true", "True"),
        ("boolean false", "False"),
        ("expected a boolean", "expected True or False"),
        ("expected a string", "expected a text"),
        ("expected u32", "expected a whole number from 0 to 2^32 - 1"),
        ("expected u64", "expected a whole number from 0 to 2^64 - 1"),
        ("expected usize", "expected a whole number from 0 to 2^64 - 1"),
        ("expected i32", "expected a whole number from -2^31 to 2^31 - 1"),
        ("expected u16", "expected a whole number from 0 to 65535"),
        ("expected f64", "expected a number"),
    ];
    names.iter().fold(text.to_owned(), |text, (serde, ours)| text.replace(serde, ours))
}

/// The first key of one value that the other does not have, by its path.
fn unknown_key(given: &Value, known: &Value) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(key, value)| {
            let Some(same) = known.get(key) else { return Some(key.clone()) };
            unknown_key(value, same).map(|inner| format!("{key}.{inner}"))
        }),
        (Value::Array(given), Value::Array(known)) => {
            given.iter().zip(known).find_map(|(given, known)| unknown_key(given, known))
        }
        _ => None,
    }
}

/// A value as JSON has it. The outer error is Python's own, as of a dict that changes while it is read.
fn value(given: &Bound<'_, PyAny>) -> PyResult<Result<Value, String>> {
    if given.is_none() {
        return Ok(Ok(Value::Null));
    }
    if let Ok(given) = given.cast::<PyBool>() {
        return Ok(Ok(Value::Bool(given.is_true())));
    }
    if let Ok(given) = given.cast::<PyString>() {
        return Ok(Ok(Value::String(given.to_str()?.to_owned())));
    }
    if given.is_instance_of::<PyInt>() {
        return Ok(whole(given));
    }
    if given.is_instance_of::<PyFloat>() {
        let number = given.extract::<f64>()?;
        return Ok(Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| format!("the number {number}, expected a finite number")));
    }
    if let Ok(given) = given.cast::<PyDict>() {
        return object(given);
    }
    // A number or a switch of numpy's.
    if given.hasattr("dtype")? && given.getattr("shape")?.len()? == 0 {
        return value(&given.call_method0("item")?);
    }
    if given.hasattr("__fspath__")? {
        return value(&given.call_method0("__fspath__")?);
    }
    if given.hasattr("__index__")? {
        return Ok(whole(&given.call_method0("__index__")?));
    }
    let Ok(items) = given.try_iter() else {
        return Ok(Err(format!("{}, expected plain data", given.get_type().name()?)));
    };
    let mut array = Vec::new();
    for item in items {
        match value(&item?)? {
            Ok(item) => array.push(item),
            Err(text) => return Ok(Err(text)),
        }
    }
    Ok(Ok(Value::Array(array)))
}

fn whole(given: &Bound<'_, PyAny>) -> Result<Value, String> {
    let number =
        given.extract::<u64>().map(Number::from).or_else(|_| given.extract::<i64>().map(Number::from));
    number.map(Value::Number).map_err(|_| format!("the number {given}, expected a number in range"))
}

fn object(given: &Bound<'_, PyDict>) -> PyResult<Result<Value, String>> {
    let mut object = Map::with_capacity(given.len());
    for (key, item) in given {
        let Ok(key) = key.cast::<PyString>() else {
            return Ok(Err(format!("the key {key}, expected a text")));
        };
        let key = key.to_str()?.to_owned();
        match value(&item)? {
            Ok(item) => object.insert(key, item),
            Err(text) => return Ok(Err(text)),
        };
    }
    Ok(Ok(Value::Object(object)))
}
