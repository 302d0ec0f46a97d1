//! Objectives as TOML text, in the format of [`super`].

use std::path::Path;

use splitcore_sim::SimError;
use splitcore_sim::workload::TrafficClass;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::{
    Attainment, ClassSlo, LIMIT, Limit, Metric, PERCENTILE, SHARE, SloSet, is_limit, is_percentile, is_share,
};

type Value<'i> = Spanned<DeValue<'i>>;

pub(super) fn read(path: &Path) -> Result<SloSet, SimError> {
    let file = path.display().to_string();
    let text = splitcore_sim::read_ordinary(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    parse(&text, &file, name)
}

pub(super) fn parse(text: &str, file: &str, name: String) -> Result<SloSet, SimError> {
    let reader = Reader { text, file };
    let document = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        reader.wrong(offset, "toml", "objectives", error.message().trim())
    })?;
    let entries = in_order(document.get_ref());
    let Some((_, _, classes)) = entries.iter().find(|&&(key, ..)| key == "class") else {
        let objectives = reader.objectives(0, "", &entries, &[])?;
        return Ok(SloSet::of_all_traffic(&name, objectives.limits, objectives.attainments));
    };
    if let Some((key, offset, _)) = entries.iter().find(|&&(key, ..)| key != "class") {
        return Err(reader.wrong(*offset, key, "all objectives within the classes", "one beside them"));
    }
    let mut set = SloSet { name, classes: Vec::new() };
    for class in reader.array(classes, "class")? {
        let read = reader.class(class)?;
        if set.classes.iter().any(|earlier| earlier.traffic.name == read.traffic.name) {
            let got = format!("`{}` again", read.traffic.name);
            return Err(reader.wrong(class.span().start, "class.name", "each class once", &got));
        }
        set.classes.push(read);
    }
    if set.classes.is_empty() {
        return Err(reader.wrong(classes.span().start, "class", "at least one [[class]]", "none"));
    }
    Ok(set)
}

/// Key, where it stands, and value, as they stand in the file.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t str, usize, &'t Value<'i>)> {
    let mut entries: Vec<_> =
        table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span().start, value)).collect();
    entries.sort_by_key(|&(_, offset, _)| offset);
    entries
}

#[derive(Default)]
struct Objectives {
    limits: Vec<Limit>,
    attainments: Vec<Attainment>,
}

struct Reader<'a> {
    text: &'a str,
    file: &'a str,
}

impl Reader<'_> {
    fn wrong(&self, offset: usize, field: &str, expected: &str, got: &str) -> SimError {
        SimError::Input {
            file: self.file.to_owned(),
            line: 1 + self.text.get(..offset).unwrap_or(self.text).matches('\n').count() as u64,
            field: field.to_owned(),
            expected: expected.to_owned(),
            got: got.to_owned(),
        }
    }

    fn class(&self, value: &Value<'_>) -> Result<ClassSlo, SimError> {
        let entries = in_order(self.table(value, "class", "a table")?);
        let offset = value.span().start;
        let field = |name: &str| entries.iter().find(|&&(key, ..)| key == name).map(|&(_, _, value)| value);
        let missing = |field: &str| self.wrong(offset, field, "a value", "nothing");
        let name = field("name").ok_or_else(|| missing("class.name"))?;
        let share = field("share").ok_or_else(|| missing("class.share"))?;
        let limit = |key: &str| {
            field(key)
                .map(|value| self.number(value, &format!("class.{key}"), "seconds above 0", is_limit))
                .transpose()
        };
        let traffic = TrafficClass {
            name: self.text(name, "class.name")?,
            trace: field("trace").map(|trace| self.text(trace, "class.trace")).transpose()?,
            share: self.number(share, "class.share", "a share above 0", is_limit)?,
            priority: match field("priority") {
                Some(priority) => {
                    let is_whole = |value: f64| value.fract() == 0.0 && value.abs() <= f64::from(i32::MAX);
                    self.number(priority, "class.priority", "a whole number", is_whole)? as i32
                }
                None => 0,
            },
            slo_ttft_s: limit("slo_ttft_s")?,
            slo_tbt_s: limit("slo_tbt_s")?,
        };
        let beside = ["name", "trace", "share", "priority", "slo_ttft_s", "slo_tbt_s"];
        let objectives = self.objectives(offset, "class.", &entries, &beside)?;
        Ok(ClassSlo { traffic, limits: objectives.limits, attainments: objectives.attainments })
    }

    /// Those among the entries of a table; `beside` is what else may be there.
    fn objectives(
        &self,
        offset: usize,
        within: &str,
        entries: &[(&str, usize, &Value<'_>)],
        beside: &[&str],
    ) -> Result<Objectives, SimError> {
        let mut found = Objectives::default();
        for &(key, at, value) in entries {
            let field = format!("{within}{key}");
            if let Some(metric) = metric(key) {
                self.percentiles(metric, &field, value, &mut found.limits)?;
            } else if key == "attainment" {
                for each in self.array(value, &field)? {
                    found.attainments.push(self.attainment(each, &field)?);
                }
            } else if !beside.contains(&key) {
                let mut known = beside.to_vec();
                known.extend(Metric::ALL.iter().map(|&(_, name)| name));
                known.push("attainment");
                let known = format!("one of {}", known.join(", "));
                return Err(self.wrong(at, &field, &known, "an unknown key"));
            }
        }
        if found.limits.is_empty() && found.attainments.is_empty() {
            let field = format!("{within}attainment");
            return Err(self.wrong(offset, &field, "at least one objective", "none"));
        }
        Ok(found)
    }

    fn percentiles(
        &self,
        metric: Metric,
        field: &str,
        value: &Value<'_>,
        limits: &mut Vec<Limit>,
    ) -> Result<(), SimError> {
        let table = self.table(value, field, "limits on percentiles, as { p90 = 0.4 }")?;
        if table.is_empty() {
            return Err(self.wrong(value.span().start, field, "at least one limit", "none"));
        }
        for (key, at, value) in in_order(table) {
            // TOML takes `p99.9 = 1` for a table `p99` with a key `9`.
            let table = value.get_ref().as_table().filter(|table| !table.is_empty());
            let dotted = table.map_or_else(|| vec![("", at, value)], in_order);
            for (decimals, at, value) in dotted {
                let key = if decimals.is_empty() { key.to_owned() } else { format!("{key}.{decimals}") };
                let percentile = key.strip_prefix('p').and_then(plain_number).filter(|&p| is_percentile(p));
                let Some(percentile) = percentile else {
                    let expected = format!("p and {PERCENTILE}, as p99 or \"p99.9\"");
                    return Err(self.wrong(at, field, &expected, &format!("`{key}`")));
                };
                if limits.iter().any(|each| each.metric == metric && each.percentile == percentile) {
                    return Err(self.wrong(at, field, "each percentile once", &format!("`{key}` again")));
                }
                let below = self.number(value, &format!("{field}.{key}"), LIMIT, is_limit)?;
                limits.push(Limit { metric, percentile, below });
            }
        }
        Ok(())
    }

    fn attainment(&self, value: &Value<'_>, field: &str) -> Result<Attainment, SimError> {
        let mut share = None;
        let mut limits = Vec::new();
        for (key, at, value) in in_order(self.table(value, field, "a table")?) {
            let field = format!("{field}.{key}");
            if key == "share" {
                share = Some(self.number(value, &field, SHARE, is_share)?);
            } else if let Some(metric) = metric(key) {
                limits.push((metric, self.number(value, &field, LIMIT, is_limit)?));
            } else {
                let known = Metric::ALL.map(|(_, name)| name).join(", ");
                return Err(self.wrong(at, &field, &format!("share or one of {known}"), "an unknown key"));
            }
        }
        let offset = value.span().start;
        let missing = |name: &str, expected| self.wrong(offset, &format!("{field}{name}"), expected, "none");
        let share = share.ok_or_else(|| missing(".share", SHARE))?;
        if limits.is_empty() {
            Err(missing("", "at least one limit"))
        } else {
            Ok(Attainment { share, limits })
        }
    }

    fn table<'t, 'i>(
        &self,
        value: &'t Value<'i>,
        field: &str,
        expected: &str,
    ) -> Result<&'t DeTable<'i>, SimError> {
        value.get_ref().as_table().ok_or_else(|| self.wrong_type(value, field, expected))
    }

    fn array<'t, 'i>(&self, value: &'t Value<'i>, field: &str) -> Result<&'t DeArray<'i>, SimError> {
        let expected = format!("tables, each under [[{field}]]");
        value.get_ref().as_array().ok_or_else(|| self.wrong_type(value, field, &expected))
    }

    fn text(&self, value: &Value<'_>, field: &str) -> Result<String, SimError> {
        let text = value.get_ref().as_str().filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| self.wrong_type(value, field, "text"))
    }

    fn number(
        &self,
        value: &Value<'_>,
        field: &str,
        expected: &str,
        is_right: fn(f64) -> bool,
    ) -> Result<f64, SimError> {
        let number = match value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number as f64)
            }
            _ => None,
        };
        number.filter(|&number| is_right(number)).ok_or_else(|| self.wrong_type(value, field, expected))
    }

    /// Says what stands there, as it stands there.
    fn wrong_type(&self, value: &Value<'_>, field: &str, expected: &str) -> SimError {
        let span = value.span();
        let got = match value.get_ref() {
            DeValue::Table(_) => "a table",
            DeValue::Array(_) => "a list",
            _ => self.text.get(span.clone()).unwrap_or_default().trim(),
        };
        self.wrong(span.start, field, expected, got)
    }
}

fn metric(name: &str) -> Option<Metric> {
    Metric::ALL.into_iter().find(|&(_, known)| known == name).map(|(metric, _)| metric)
}

/// Digits and at most one point: neither `inf` nor `1e2`.
fn plain_number(text: &str) -> Option<f64> {
    text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.').then(|| text.parse().ok())?
}
