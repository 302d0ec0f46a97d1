//! A user's machine types as TOML text.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::machine_type::{Hardware, MachineType};
use super::{one_of, quoted};
use crate::SimError;
use crate::files::read_ordinary;

/// Every key of a machine.
const KEYS: [&str; 11] = [
    "like",
    "profile",
    "gpus",
    "gpu_memory_gib",
    "nic_gb_per_s",
    "fixed_cost_ms",
    "prefill_factor",
    "decode_factor",
    "cost_per_hour",
    "power_w",
    "rack_units",
];

/// Reads a file of machine types, each as
///
/// ```toml
/// [machine.h200-box]
/// like = "dgx-h100"       # everything not said is taken from this one, which is built in
/// profile = "h200-141gb"  # hardware name in the profile, for measurements of one's own
/// gpus = 8                # of one host: 1, 2, 4 or 8
/// gpu_memory_gib = 141
/// nic_gb_per_s = 400      # of one host, in each direction
/// fixed_cost_ms = 5       # what a layer-wise transfer leaves visible
/// prefill_factor = 1.0    # on the times of `profile`
/// decode_factor = 0.75
/// cost_per_hour = 42.0    # of one host; else as `like` in the price table
/// power_w = 10200
/// rack_units = 8
/// ```
///
/// # Errors
/// [`SimError::Io`] when it cannot be read, otherwise as [`machine_types_from_toml`].
pub fn read_machine_types(path: &str) -> Result<Vec<MachineType>, SimError> {
    let text = read_ordinary(Path::new(path))?;
    machine_types_from_toml(&text, path)
}

/// Reads machine types from their text, in file order; `file` is what errors call it.
///
/// # Errors
/// [`SimError::Input`] with file, line and field.
pub fn machine_types_from_toml(text: &str, file: &str) -> Result<Vec<MachineType>, SimError> {
    let source = Source { text, file };
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        source.error(at, "toml", "a TOML file of machine types", error.message().trim())
    })?;
    let mut types = Vec::new();
    for (key, value) in document.get_ref() {
        if key.get_ref() != "machine" {
            return Err(source.error(key.span().start, key.get_ref(), "[machine.NAME]", key.get_ref()));
        }
        for (name, entry) in source.table(value, "machine")? {
            types.push((name.span().start, source.machine(name, entry)?));
        }
    }
    if types.is_empty() {
        return Err(source.error(text.len(), "machine", "at least one [machine.NAME]", "none"));
    }
    types.sort_by_key(|&(at, _)| at);
    Ok(types.into_iter().map(|(_, machine)| machine).collect())
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;
type Value<'a> = Spanned<DeValue<'a>>;

/// The text, for errors that say where.
struct Source<'a> {
    text: &'a str,
    file: &'a str,
}

impl Source<'_> {
    fn error(&self, at: usize, field: &str, expected: &str, got: &str) -> SimError {
        SimError::Input {
            file: self.file.to_owned(),
            line: 1 + self.text.get(..at).unwrap_or(self.text).matches('\n').count() as u64,
            field: field.to_owned(),
            expected: expected.to_owned(),
            got: got.to_owned(),
        }
    }

    /// The same about a value, as it stands in the file.
    fn wrong(&self, value: &Value<'_>, field: &str, expected: &str) -> SimError {
        let span = value.span();
        let got = self.text.get(span.clone()).unwrap_or_default();
        self.error(span.start, field, expected, got.lines().next().unwrap_or_default())
    }

    fn table<'v, 't>(&self, value: &'v Value<'t>, field: &str) -> Result<&'v DeTable<'t>, SimError> {
        value.get_ref().as_table().ok_or_else(|| self.wrong(value, field, "a table"))
    }

    fn machine(&self, name: &Key<'_>, entry: &Value<'_>) -> Result<MachineType, SimError> {
        let table = self.table(entry, name.get_ref())?;
        if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.get_ref().as_ref())) {
            let got = quoted(unknown.get_ref());
            return Err(self.error(unknown.span().start, unknown.get_ref(), &one_of(&KEYS), &got));
        }
        let built_in = one_of(&Hardware::ALL.map(Hardware::name));
        let like =
            table.get("like").ok_or_else(|| self.error(name.span().start, "like", &built_in, "none"))?;
        let known = |text| Hardware::ALL.into_iter().find(|hardware| Some(hardware.name()) == text);
        let base = known(like.get_ref().as_str()).ok_or_else(|| self.wrong(like, "like", &built_in))?;
        let mut machine = MachineType::named_like(name.get_ref(), base);
        for (key, value) in table {
            self.set(&mut machine, key.get_ref(), value)?;
        }
        machine.check().map_err(|problem| match table.get(problem.field) {
            Some(value) => self.wrong(value, problem.field, &problem.expected),
            None => self.error(name.span().start, problem.field, &problem.expected, &problem.got),
        })?;
        Ok(machine)
    }

    fn set(&self, machine: &mut MachineType, key: &str, value: &Value<'_>) -> Result<(), SimError> {
        match key {
            "like" => {}
            "profile" => {
                let text = value.get_ref().as_str();
                let text = text.ok_or_else(|| self.wrong(value, key, "a hardware name of the profile"))?;
                text.clone_into(&mut machine.profile_name);
            }
            _ => {
                let number = number(value.get_ref()).ok_or_else(|| self.wrong(value, key, "a number"))?;
                let whole = |number: f64| number.round() as u64;
                match key {
                    // A fraction of a GPU is as wrong as none.
                    "gpus" => machine.gpus = if number.fract() == 0.0 { number as u32 } else { 0 },
                    "gpu_memory_gib" => machine.gpu_memory_bytes = whole(number * (1_u64 << 30) as f64),
                    "nic_gb_per_s" => machine.nic_bytes_per_s = whole(number * 1e9),
                    "fixed_cost_ms" if number < 0.0 => return Err(self.wrong(value, key, "0 to 10000")),
                    "fixed_cost_ms" => machine.fixed_cost_ns = whole(number * 1e6),
                    "prefill_factor" => machine.prefill_factor = number,
                    "decode_factor" => machine.decode_factor = number,
                    "cost_per_hour" => machine.cost_per_hour = Some(number),
                    "power_w" => machine.power_w = Some(number),
                    _ => machine.rack_units = Some(number),
                }
            }
        }
        Ok(())
    }
}

/// A decimal number, whole or not; no infinity and no NaN.
fn number(value: &DeValue<'_>) -> Option<f64> {
    let text = match value {
        DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
        DeValue::Float(float) => float.as_str(),
        _ => return None,
    };
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
[machine.h200-box]
like = \"dgx-h100\"
gpu_memory_gib = 141
nic_gb_per_s = 300
decode_factor = 0.75
cost_per_hour = 42.0

[machine.a100-half]
like = \"dgx-a100\"
profile = \"a100-sxm\"
gpus = 4
fixed_cost_ms = 2.5
prefill_factor = 1.25
power_w = 3_250
rack_units = 3
";

    #[test]
    fn what_is_not_said_is_taken_from_like() {
        let types = machine_types_from_toml(GOOD, "own.toml").unwrap();
        let h200 = MachineType {
            gpu_memory_bytes: 141 << 30,
            nic_bytes_per_s: 300_000_000_000,
            decode_factor: 0.75,
            cost_per_hour: Some(42.0),
            ..MachineType::named_like("h200-box", Hardware::H100)
        };
        let a100 = MachineType {
            profile_name: "a100-sxm".into(),
            gpus: 4,
            fixed_cost_ns: 2_500_000,
            prefill_factor: 1.25,
            power_w: Some(3250.0),
            rack_units: Some(3.0),
            ..MachineType::named_like("a100-half", Hardware::A100)
        };
        assert_eq!(types, [h200, a100], "in file order");
        let sent = serde_json::to_string(&types).unwrap();
        assert_eq!(serde_json::from_str::<Vec<MachineType>>(&sent).unwrap(), types);
    }

    #[test]
    fn every_mistake_has_line_and_field() {
        let head = "[machine.box]\nlike = \"dgx-h100\"\n";
        let with = |line: &str| format!("{head}{line}\n");
        let cases = [
            (String::new(), 1, "machine", "at least one [machine.NAME]"),
            ("[machine.box\n".into(), 1, "toml", "a TOML file"),
            (format!("{head}[machine.box]\n"), 3, "toml", "a TOML file"),
            ("[machines.box]\n".into(), 1, "machines", "[machine.NAME]"),
            ("machine = 3\n".into(), 1, "machine", "a table"),
            ("[machine]\nbox = 3\n".into(), 2, "box", "a table"),
            ("\n[machine.box]\ngpus = 8\n".into(), 2, "like", "one of dgx-a100"),
            ("[machine.box]\nlike = \"dgx-b200\"\n".into(), 2, "like", "one of dgx-a100"),
            ("[machine.box]\nlike = 8\n".into(), 2, "like", "one of dgx-a100"),
            ("[machine.dgx-h100]\nlike = \"dgx-h100\"\n".into(), 1, "name", "not built in"),
            ("\n[machine.\"a b\"]\nlike = \"dgx-h100\"\n".into(), 2, "name", "a letter, then"),
            (with("memory = 3"), 3, "memory", "one of like, profile, gpus"),
            (with("profile = 3"), 3, "profile", "a hardware name"),
            (with("profile = \"\""), 3, "profile", "a hardware name"),
            (with("gpus = 3"), 3, "gpus", "one of 1, 2, 4, 8"),
            (with("gpus = 4.5"), 3, "gpus", "one of 1, 2, 4, 8"),
            (with("gpus = -8"), 3, "gpus", "one of 1, 2, 4, 8"),
            (with("gpu_memory_gib = 0.5"), 3, "gpu_memory_gib", "1 to 4096"),
            (with("gpu_memory_gib = \"141\""), 3, "gpu_memory_gib", "a number"),
            (with("gpu_memory_gib = inf"), 3, "gpu_memory_gib", "a number"),
            (with("gpu_memory_gib = 0x8d"), 3, "gpu_memory_gib", "a number"),
            (with("nic_gb_per_s = 0"), 3, "nic_gb_per_s", "0.001 to"),
            (with("fixed_cost_ms = -1"), 3, "fixed_cost_ms", "0 to 10000"),
            (with("fixed_cost_ms = 1e9"), 3, "fixed_cost_ms", "0 to 10000"),
            (with("prefill_factor = nan"), 3, "prefill_factor", "a number"),
            (with("decode_factor = 0"), 3, "decode_factor", "0.001 to"),
            (with("\ncost_per_hour = -1"), 4, "cost_per_hour", "to 1000000"),
            (with("power_w = 0"), 3, "power_w", "to 10000000"),
            (with("rack_units = 1e9"), 3, "rack_units", "to 10000"),
        ];
        for (text, line, field, expected) in cases {
            let error = machine_types_from_toml(&text, "own.toml").unwrap_err();
            let told = error.to_string();
            assert!(told.starts_with(&format!("own.toml:{line}: {field}: expected ")), "{text}: {told}");
            assert!(told.contains(expected), "{text}: {told}");
        }
        let absent = read_machine_types("/nowhere/own.toml").unwrap_err();
        assert!(matches!(absent, SimError::Io { .. }), "{absent}");
    }
}
