//! What a reader of JSON says, in words of JSON: no types of the language that this is written in.

/// Longest part of a wrong value that an error repeats.
const SHOWN: usize = 200;

/// What of a given text an error repeats.
pub(crate) fn shown(given: &str) -> &str {
    let mut end = given.len().min(SHOWN);
    while !given.is_char_boundary(end) {
        end -= 1;
    }
    &given[..end]
}

/// An error of `serde`, as `expected ..., got ...`.
pub(crate) fn plain(error: &str) -> String {
    // Where in the text it was, which the field says better.
    let error = error.rsplit_once(" at line ").map_or(error, |(error, _)| error);
    for kind in ["invalid type: ", "invalid value: ", "invalid length "] {
        let parts = error.strip_prefix(kind).and_then(|rest| rest.rsplit_once(", expected "));
        if let Some((got, expected)) = parts {
            let list = || format!("a list of {}", shown(got));
            let got = if kind == "invalid length " { list() } else { found(got) };
            return format!("expected {}, got {got}", wanted(expected));
        }
    }
    for kind in ["unknown variant ", "unknown field "] {
        let parts = error.strip_prefix(kind).and_then(|rest| rest.rsplit_once(", expected "));
        if let Some((got, expected)) = parts {
            let expected = expected.replace('`', "");
            return match kind {
                "unknown field " => format!("{kind}{}, expected {expected}", shown(got)),
                _ => format!("expected {expected}, got '{}'", shown(got.trim_matches('`'))),
            };
        }
    }
    // The second is what a reader says where a name was to be and something else is.
    if error.starts_with("data did not match any variant of untagged enum") || error == "expected value" {
        return "expected another kind of value".to_owned();
    }
    shown(error).to_owned()
}

/// What would have been accepted.
fn wanted(expected: &str) -> String {
    if let Some(values) = expected.strip_prefix("a tuple of size ") {
        return format!("a list of {values} values");
    }
    let whole = |least: i128, most: u128| format!("a whole number of {least} to {most}");
    match expected {
        "u8" => whole(0, u8::MAX.into()),
        "u16" => whole(0, u16::MAX.into()),
        "u32" => whole(0, u32::MAX.into()),
        "u64" | "usize" => whole(0, u64::MAX.into()),
        "i8" => whole(i8::MIN.into(), i8::MAX as u128),
        "i16" => whole(i16::MIN.into(), i16::MAX as u128),
        "i32" => whole(i32::MIN.into(), i32::MAX as u128),
        "i64" | "isize" => whole(i64::MIN.into(), i64::MAX as u128),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" | "bool" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        "unit" => "null".to_owned(),
        "a string" | "a borrowed string" | "string" | "path string" | "a character" => "a string".to_owned(),
        _ if ["struct ", "internally tagged enum ", "adjacently tagged enum ", "map with "]
            .iter()
            .any(|kind| expected.starts_with(kind)) =>
        {
            "an object".to_owned()
        }
        _ if expected.starts_with("tuple") => "a list".to_owned(),
        _ if expected.starts_with("enum ") || expected == "string or map" => "a name".to_owned(),
        other => other.replace('`', ""),
    }
}

/// What was there instead.
fn found(got: &str) -> String {
    let plain = |kind: &str| got.strip_prefix(kind).map(|rest| shown(rest.trim_matches('`')).to_owned());
    match got {
        "sequence" => return "a list".to_owned(),
        "map" => return "an object".to_owned(),
        "unit value" | "Option value" => return "null".to_owned(),
        _ => {}
    }
    plain("integer ")
        .or_else(|| plain("floating point "))
        .or_else(|| plain("number "))
        .or_else(|| plain("boolean "))
        .unwrap_or_else(|| shown(got).to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Colour {
        Red,
        Green,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Part {
        #[serde(rename = "at")]
        _at: u32,
        #[serde(default, rename = "to")]
        _to: Option<i64>,
        #[serde(default, rename = "share")]
        _share: f64,
        #[serde(default, rename = "on")]
        _on: bool,
        #[serde(default, rename = "name")]
        _name: String,
        #[serde(default, rename = "parts")]
        _parts: Vec<Part>,
        #[serde(default, rename = "map")]
        _map: BTreeMap<String, u8>,
        #[serde(default, rename = "colour")]
        _colour: Option<Colour>,
        #[serde(default, rename = "pair")]
        _pair: Option<(u16, u16)>,
    }

    #[test]
    fn errors_are_in_words_of_json() {
        let cases = [
            (r#"{"at": "many"}"#, "expected a whole number of 0 to 4294967295, got string \"many\""),
            (r#"{"at": -1}"#, "expected a whole number of 0 to 4294967295, got -1"),
            (r#"{"at": 1.5}"#, "expected a whole number of 0 to 4294967295, got 1.5"),
            (r#"{"at": null}"#, "expected a whole number of 0 to 4294967295, got null"),
            (r#"{"at": [", expected u32"]}"#, "expected a whole number of 0 to 4294967295, got a list"),
            (
                r#"{"at": ", expected u32"}"#,
                "expected a whole number of 0 to 4294967295, got string \", expected u32\"",
            ),
            (
                r#"{"to": {}}"#,
                "expected a whole number of -9223372036854775808 to 9223372036854775807, got an object",
            ),
            (r#"{"share": true}"#, "expected a number, got true"),
            (r#"{"on": 1}"#, "expected true or false, got 1"),
            (r#"{"name": 1}"#, "expected a string, got 1"),
            (r#"{"parts": 1}"#, "expected a list, got 1"),
            (r#"{"parts": [1]}"#, "expected an object, got 1"),
            (r#"{"map": []}"#, "expected an object, got a list"),
            (r#"{"map": {"a": 256}}"#, "expected a whole number of 0 to 255, got 256"),
            (r#"{"colour": "blue"}"#, "expected red or green, got 'blue'"),
            (r#"{"colour": 1}"#, "expected another kind of value"),
            (r#"{"pair": [1]}"#, "expected a list of 2 values, got a list of 1"),
            (r#"{"parts": [[]]}"#, "expected an object, got a list of 0"),
            (r#"{"at": 1, "at": 1}"#, "duplicate field `at`"),
            ("{}", "missing field `at`"),
        ];
        for (text, expected) in cases {
            let error = serde_json::from_str::<Part>(text).err().expect("wrong").to_string();
            let said = plain(&error);
            assert_eq!(said, expected, "{text}: {error}");
        }
        let unknown = serde_json::from_str::<Part>(r#"{"hue": 1}"#).err().expect("wrong").to_string();
        assert!(plain(&unknown).starts_with("unknown field `hue`, expected one of at, to, "), "{unknown}");
        assert!(matches!(serde_json::from_str("\"red\""), Ok(Colour::Red)));
        assert!(matches!(serde_json::from_str("\"green\""), Ok(Colour::Green)));
    }
}
