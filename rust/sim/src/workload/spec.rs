//! What workload is wanted, and the making of it.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::arrivals::{self, Gaps};
use super::draws::Streams;
use super::sizes::Sizes;
use super::{
    ARRIVAL_MAX_NS, REQUESTS_MAX, Reading, SizeTable, TraceFile, TraceRequest, Workload, read_trace,
};
use crate::SimError;

/// Length of a generated workload when neither a duration nor a number of requests is given.
const DURATION_DEFAULT_S: f64 = 300.0;
/// One arrival in 31 years to one per nanosecond.
const RATE_RANGE_RPS: std::ops::RangeInclusive<f64> = 1e-9..=1e9;
/// Gamma shapes beyond these lose their meaning in floating point.
const CV_RANGE: std::ops::RangeInclusive<f64> = 1e-3..=1e3;

const AZURE_CONV: &str = include_str!("../../data/azure-conv.txt");
const AZURE_CODE: &str = include_str!("../../data/azure-code.txt");

/// Where lengths, and for a file arrivals, come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Built-in `azure-conv`: lengths of a conversation service.
    AzureConv,
    /// Built-in `azure-code`: lengths of a coding service.
    AzureCode,
    /// A trace file, in any format that [`read_trace`] knows.
    File(PathBuf),
}

impl From<&str> for Source {
    /// The name of a built-in workload; anything else is a path.
    fn from(text: &str) -> Self {
        match text {
            "azure-conv" => Self::AzureConv,
            "azure-code" => Self::AzureCode,
            path => Self::File(path.into()),
        }
    }
}

impl FromStr for Source {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.into())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AzureConv => f.write_str("azure-conv"),
            Self::AzureCode => f.write_str("azure-code"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// How arrival times are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// `poisson`: exponential gaps.
    Poisson,
    /// `bursty`: gamma gaps with a coefficient of variation of choice.
    Bursty,
    /// `trace`: the file's own times.
    Trace,
}

impl FromStr for Arrivals {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        match text {
            "poisson" => Ok(Self::Poisson),
            "bursty" => Ok(Self::Bursty),
            "trace" => Ok(Self::Trace),
            other => Err(SimError::config("arrivals", "poisson, bursty or trace", format!("{other:?}"))),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Poisson => "poisson",
            Self::Bursty => "bursty",
            Self::Trace => "trace",
        })
    }
}

/// How the two lengths of a generated request go together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sampling {
    /// `joint`: the output depends on the prompt as it does in the source.
    #[default]
    Joint,
    /// `independent`: each length is drawn on its own.
    Independent,
}

impl FromStr for Sampling {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        match text {
            "joint" => Ok(Self::Joint),
            "independent" => Ok(Self::Independent),
            other => Err(SimError::config("sampling", "joint or independent", format!("{other:?}"))),
        }
    }
}

impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Joint => "joint",
            Self::Independent => "independent",
        })
    }
}

/// A workload to make. The same spec makes the same workload on every platform.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSpec {
    /// Where lengths come from.
    pub source: Source,
    /// Mean arrivals per second. Needed to generate arrivals; stretches the times of a replayed file.
    pub rate_rps: Option<f64>,
    /// Only arrivals before this time. 300 s for generated arrivals, unless `requests` is given.
    pub duration_s: Option<f64>,
    /// How arrivals are made: by default Poisson for a built-in source, the file's own times for a file.
    pub arrivals: Option<Arrivals>,
    /// Coefficient of variation of bursty gaps.
    pub cv: f64,
    /// How generated lengths go together.
    pub sampling: Sampling,
    /// Seed of everything generated.
    pub seed: u64,
    /// Stop after this many requests.
    pub requests: Option<usize>,
    /// How what a file leaves open is read.
    pub reading: Reading,
}

impl Default for WorkloadSpec {
    fn default() -> Self {
        Self {
            source: Source::AzureConv,
            rate_rps: None,
            duration_s: None,
            arrivals: None,
            cv: 4.0,
            sampling: Sampling::Joint,
            seed: 0,
            requests: None,
            reading: Reading::default(),
        }
    }
}

impl WorkloadSpec {
    /// Makes the requests.
    ///
    /// # Errors
    ///
    /// An option out of range or missing, a file that cannot be read or holds something else than a trace, or a
    /// workload without a single request.
    pub fn build(&self) -> Result<Workload, SimError> {
        self.check()?;
        let mut notes = Vec::new();
        let requests = match (&self.source, self.arrivals) {
            (Source::File(path), None | Some(Arrivals::Trace)) => {
                self.replay(read_trace(path, &self.reading)?, &mut notes)?
            }
            (Source::File(path), Some(arrivals)) => {
                let gaps = self.gaps(arrivals)?;
                let file = read_trace(path, &self.reading)?;
                notes = file.notes;
                let rows = file.requests.iter().map(|r| (r.prompt_tokens, r.output_tokens)).collect();
                self.generate(gaps, &Sizes::Rows(rows))?
            }
            (Source::AzureConv, arrivals) => self.generate_built_in(arrivals, AZURE_CONV)?,
            (Source::AzureCode, arrivals) => self.generate_built_in(arrivals, AZURE_CODE)?,
        };
        if requests.is_empty() {
            let got = self.duration_s.unwrap_or(DURATION_DEFAULT_S);
            return Err(SimError::config("duration_s", "seconds that hold at least one arrival", got));
        }
        Ok(Workload { name: self.name(), requests, classes: Vec::new(), notes })
    }

    /// What can be wrong whatever the source.
    fn check(&self) -> Result<(), SimError> {
        if let Some(rate) = self.rate_rps.filter(|rate| !RATE_RANGE_RPS.contains(rate)) {
            return Err(SimError::config("rate", "requests per second above 0 (1e-9 to 1e9)", rate));
        }
        if let Some(duration) = self.duration_s.filter(|&s| !(s.is_finite() && s > 0.0)) {
            return Err(SimError::config("duration_s", "seconds above 0", duration));
        }
        if !CV_RANGE.contains(&self.cv) {
            let expected = format!("a number from {} to {}", CV_RANGE.start(), CV_RANGE.end());
            return Err(SimError::config("cv", expected, self.cv));
        }
        match self.requests {
            Some(count) if count == 0 || count > REQUESTS_MAX => {
                Err(SimError::config("requests", format!("1 to {REQUESTS_MAX}"), count))
            }
            _ => Ok(()),
        }
    }

    /// Without folders, so that a report does not depend on where the file lies.
    fn name(&self) -> String {
        match &self.source {
            Source::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            built_in => built_in.to_string(),
        }
    }

    /// A file's own requests: first stretched, then cut.
    fn replay(&self, file: TraceFile, notes: &mut Vec<String>) -> Result<Vec<TraceRequest>, SimError> {
        let TraceFile { mut requests, has_times, notes: told } = file;
        notes.extend(told);
        if !has_times {
            let expected = format!(
                "poisson or bursty beside a rate, as {} does not say when requests arrive",
                self.name()
            );
            return Err(SimError::config("arrivals", expected, self.arrivals.map_or("none", |_| "trace")));
        }
        if let Some(rate) = self.rate_rps {
            arrivals::rescale(&mut requests, rate)?;
        }
        let all = requests.len();
        if let Some(end_ns) = self.duration_s.map(whole_ns) {
            requests.truncate(requests.partition_point(|request| request.arrival_ns < end_ns));
        }
        requests.truncate(self.requests.unwrap_or(usize::MAX));
        notes.extend(self.rate_of_part(all, &requests));
        Ok(requests)
    }

    /// A part of a file that was stretched as a whole has another rate than was asked for: it is told.
    fn rate_of_part(&self, all: usize, part: &[TraceRequest]) -> Option<String> {
        let rate_rps = self.rate_rps.filter(|_| part.len() < all && part.len() > 1)?;
        let span_ns = part.last()?.arrival_ns.checked_sub(part.first()?.arrival_ns)?;
        let part_rps = (part.len() - 1) as f64 * 1e9 / span_ns as f64;
        Some(format!(
            "{}: the whole of {all} requests is stretched to {rate_rps}/s; the first {}, which run, come at {part_rps:.3}/s",
            self.name(),
            part.len()
        ))
    }

    fn generate_built_in(
        &self,
        arrivals: Option<Arrivals>,
        table: &str,
    ) -> Result<Vec<TraceRequest>, SimError> {
        let gaps = self.gaps(arrivals.unwrap_or(Arrivals::Poisson))?;
        self.generate(gaps, &Sizes::Table(SizeTable::parse(&self.name(), table)?))
    }

    fn gaps(&self, arrivals: Arrivals) -> Result<Gaps, SimError> {
        let rate = || {
            let missing = || SimError::config("rate", "requests per second, to generate arrivals", "nothing");
            let rate = self.rate_rps.ok_or_else(missing)?;
            let expected_count = rate * self.duration_s.unwrap_or(DURATION_DEFAULT_S);
            if self.requests.is_none() && expected_count > REQUESTS_MAX as f64 {
                return Err(SimError::config(
                    "rate",
                    format!("at most {REQUESTS_MAX} requests"),
                    expected_count,
                ));
            }
            Ok(rate)
        };
        match arrivals {
            Arrivals::Poisson => Ok(Gaps::poisson(rate()?)),
            Arrivals::Bursty => Ok(Gaps::bursty(rate()?, self.cv)),
            Arrivals::Trace => Err(SimError::config(
                "arrivals",
                "poisson or bursty, as a built-in workload keeps no timestamps",
                Arrivals::Trace,
            )),
        }
    }

    fn generate(&self, gaps: Gaps, sizes: &Sizes) -> Result<Vec<TraceRequest>, SimError> {
        let Streams { mut arrivals, sizes: mut draws } = Streams::new(self.seed);
        let default_s = self.requests.is_none().then_some(DURATION_DEFAULT_S);
        let end_ns = self.duration_s.or(default_s).map(whole_ns);
        let arrivals_ns = arrivals::generate(gaps, end_ns, self.requests, &mut arrivals)?;
        let request = |arrival_ns| {
            let (prompt_tokens, output_tokens) = sizes.draw(self.sampling, &mut draws);
            TraceRequest { arrival_ns, prompt_tokens, output_tokens }
        };
        Ok(arrivals_ns.into_iter().map(request).collect())
    }
}

/// A duration as whole nanoseconds; one beyond any arrival cuts nothing.
fn whole_ns(seconds: f64) -> u64 {
    ((seconds * 1e9).round() as u64).min(ARRIVAL_MAX_NS + 1)
}
