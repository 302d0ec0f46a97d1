//! Several kinds of traffic at once, each with lengths of its own and a share of the rate.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Source, TraceRequest, Workload, WorkloadSpec};
use crate::SimError;
use crate::files::read_ordinary;

/// Classes at most: what fits the class of a request.
const CLASSES_MAX: usize = 1 << 12;

/// One kind of traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficClass {
    /// For reports.
    pub name: String,
    /// Where its requests come from; the run's trace unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Its part of the rate, in any unit: shares of 3 and 1 are 75 % and 25 %.
    pub share: f64,
    /// Of its requests: where accepted ones wait, the higher goes first.
    #[serde(default)]
    pub priority: i32,
    /// Limit on the time to the first token that its arrivals are held against; the run's unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_ttft_s: Option<f64>,
    /// Likewise on the time between tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_tbt_s: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassesFile {
    class: Vec<TrafficClass>,
}

/// Reads a TOML file of classes, a `[[class]]` for each.
///
/// # Errors
/// [`SimError::Input`] with file and line.
pub fn read_classes(path: &str) -> Result<Vec<TrafficClass>, SimError> {
    let text = read_ordinary(Path::new(path))?;
    let read = toml::from_str::<ClassesFile>(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
        SimError::Input {
            file: path.to_owned(),
            line: 1 + before.matches('\n').count() as u64,
            field: "class".to_owned(),
            expected: "[[class]] with name, share and, if need be, trace, priority, slo_ttft_s and slo_tbt_s"
                .to_owned(),
            got: error.message().trim().to_owned(),
        }
    })?;
    Ok(read.class)
}

/// Makes each class on its own and merges them by arrival; at equal times the earlier class comes first.
///
/// Each class has draws of its own, so one more class leaves the requests of the others as they were, up to their
/// rate.
///
/// # Errors
/// As [`WorkloadSpec::build`] for each class; no rate, or a share that is not above 0.
pub fn mixed(spec: &WorkloadSpec, classes: &[TrafficClass]) -> Result<Workload, SimError> {
    if classes.is_empty() {
        return spec.build();
    }
    if classes.len() > CLASSES_MAX {
        return Err(SimError::config("classes", format!("at most {CLASSES_MAX}"), classes.len()));
    }
    let Some(rate_rps) = spec.rate_rps else {
        return Err(SimError::config("rate", "requests per second, to share it among classes", "nothing"));
    };
    if let Some(class) = classes.iter().find(|class| !(class.share > 0.0 && class.share < f64::INFINITY)) {
        let got = format!("{} for class `{}`", class.share, class.name);
        return Err(SimError::config("classes", "shares above 0", got));
    }
    let all: f64 = classes.iter().map(|class| class.share).sum();
    let mut tagged: Vec<(u16, TraceRequest)> = Vec::new();
    let mut notes = Vec::new();
    for (at, class) in (0_u16..).zip(classes) {
        let source = class.trace.as_deref().map_or_else(|| spec.source.clone(), Source::from);
        let own = WorkloadSpec {
            source,
            rate_rps: Some(rate_rps * class.share / all),
            seed: class_seed(spec.seed, at),
            ..spec.clone()
        };
        let Workload { requests, notes: told, .. } = own.build()?;
        tagged.extend(requests.into_iter().map(|request| (at, request)));
        notes.extend(told.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
    }
    tagged.sort_by_key(|&(at, request)| (request.arrival_ns, at));
    tagged.truncate(spec.requests.unwrap_or(usize::MAX));
    let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
    Ok(Workload {
        name: names.join("+"),
        classes: tagged.iter().map(|&(at, _)| at).collect(),
        requests: tagged.into_iter().map(|(_, request)| request).collect(),
        notes,
    })
}

/// The first class has the run's own seed: alone it is the run without classes.
fn class_seed(seed: u64, class: u16) -> u64 {
    seed ^ u64::from(class).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, trace: &str, share: f64) -> TrafficClass {
        TrafficClass { name: name.into(), trace: Some(trace.into()), share, ..TrafficClass::default() }
    }

    fn spec() -> WorkloadSpec {
        WorkloadSpec { rate_rps: Some(20.0), duration_s: Some(100.0), ..WorkloadSpec::default() }
    }

    #[test]
    fn one_class_is_the_plain_workload() {
        let plain = spec().build().unwrap();
        let one = mixed(&spec(), &[class("all", "azure-conv", 0.3)]).unwrap();
        assert_eq!((one.requests, one.classes), (plain.requests.clone(), vec![0; plain.requests.len()]));
    }

    #[test]
    fn classes_get_their_shares_in_order_of_arrival() {
        let classes = [class("chat", "azure-conv", 3.0), class("code", "azure-code", 1.0)];
        let both = mixed(&spec(), &classes).unwrap();
        assert_eq!(both.name, "chat+code");
        assert!(both.requests.is_sorted_by_key(|request| request.arrival_ns));
        let chat = both.classes.iter().filter(|&&at| at == 0).count() as f64;
        let share = chat / both.classes.len() as f64;
        assert!((0.70..0.80).contains(&share), "{share}");
        let alone = WorkloadSpec { rate_rps: Some(15.0), ..spec() }.build().unwrap().requests;
        let of_chat = both.requests.iter().zip(&both.classes).filter(|&(_, &at)| at == 0);
        assert!(of_chat.map(|(request, _)| request).eq(&alone), "the other class changes nothing here");
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        let told = |spec: &WorkloadSpec, share| {
            mixed(spec, &[class("chat", "azure-conv", share)]).unwrap_err().to_string()
        };
        assert_eq!(told(&spec(), 0.0), "classes: expected shares above 0, got 0 for class `chat`");
        assert!(told(&spec(), f64::NAN).starts_with("classes:"));
        let no_rate = WorkloadSpec { rate_rps: None, ..spec() };
        assert!(told(&no_rate, 1.0).starts_with("rate: expected"), "{}", told(&no_rate, 1.0));
    }
}
