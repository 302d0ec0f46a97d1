//! Machines: joined, drained, lost, reported on.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use splitcore_core::cluster::MachineState;
use splitcore_core::event::Slo;

use super::App;
use super::body::{answer, json, json_by, number, parse, parse_object};
use super::errors::ApiError;
use super::pieces;
use crate::host::{MachineSpec, Recovered, ReportSpec, RowView};

type Answer = Result<Response, ApiError>;
type Name = Result<Path<String>, PathRejection>;

/// Bytes of a machine's name at most.
const NAME_BYTES_MAX: usize = 256;
/// Bytes of a machine's address at most.
const URL_BYTES_MAX: usize = 2048;
/// Knots in a list of a machine's costs at most.
const KNOTS_MAX: usize = 64;
/// Machines that are looked at before a part of a list is written.
const ROWS: u32 = 16;

fn check(spec: &MachineSpec) -> Result<(), ApiError> {
    let wrong = |field: &str, expected: &str| {
        Err(ApiError::invalid(field, format!("{field}: expected {expected} (machine '{}')", spec.name)))
    };
    let length = spec.name.len();
    if length == 0 || length > NAME_BYTES_MAX || spec.name.chars().any(char::is_control) {
        let message = format!("name: expected 1 to {NAME_BYTES_MAX} bytes without control characters");
        return Err(ApiError::invalid("name", message));
    }
    if spec.url.as_ref().is_some_and(|url| url.len() > URL_BYTES_MAX || url.chars().any(char::is_control)) {
        return wrong("url", &format!("at most {URL_BYTES_MAX} bytes without control characters"));
    }
    let knots =
        spec.costs.as_ref().map(|costs| costs.points().prefill.len().max(costs.points().decode.len()));
    if knots.is_some_and(|knots| knots > KNOTS_MAX) {
        return wrong("costs", &format!("at most {KNOTS_MAX} knots in a list"));
    }
    if !(0.0..1e9).contains(&spec.transfer_fixed_cost_s) {
        return wrong("transfer_fixed_cost_s", "0 to 1000000000 seconds");
    }
    if spec.link_bytes_per_s == Some(0) {
        return wrong("link_bytes_per_s", "at least 1");
    }
    let counts = [
        ("kv_blocks", spec.kv_blocks),
        ("block_tokens", spec.block_tokens),
        ("speed_weight", spec.speed_weight),
    ];
    match counts.into_iter().find(|&(_, count)| count == 0) {
        Some((field, _)) => wrong(field, "at least 1"),
        None => Ok(()),
    }
}

fn one_or_more(bytes: &[u8]) -> Result<Vec<MachineSpec>, ApiError> {
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return parse(bytes);
    }
    Ok(vec![parse_object(bytes)?])
}

#[derive(Serialize)]
struct Joined {
    joined: usize,
}

/// `POST /v1/machines`: one, or a list of them, all or none.
pub(super) async fn join(State(app): State<Arc<App>>, request: Request) -> Answer {
    app.places_for_others()?;
    let specs = json_by(&app, request, one_or_more).await?;
    app.check_batch("machines", specs.len())?;
    specs.iter().try_for_each(check)?;
    let joined = specs.len();
    // Nobody else may take one of the names meanwhile.
    let turn = Arc::clone(&app.joins).lock_owned().await;
    app.host.check_joins(&specs)?;
    app.in_turns(specs, move |app, some| {
        let _turn = &turn;
        app.host.join(some).map(|()| Vec::<()>::new())
    })
    .await?;
    tracing::info!(machines = joined, "joined");
    Ok(answer(StatusCode::CREATED, &Joined { joined }))
}

/// All machines, lost ones included, some at a time: the books may change while a client takes its list.
fn rows(app: Arc<App>) -> impl Iterator<Item = RowView> + Send + 'static {
    let mut next = Some(0);
    let some = move || {
        // A host that has stopped has no machines.
        let (rows, after) = app.host.rows(next?, ROWS).unwrap_or_default();
        next = after;
        Some(rows)
    };
    std::iter::from_fn(some).flatten()
}

/// `GET /v1/machines`: those that are here.
pub(super) async fn list(State(app): State<Arc<App>>) -> Answer {
    let limit = app.options.write_timeout_s;
    let here = rows(app).filter(|row| row.state != MachineState::Lost);
    Ok(pieces::answer(limit, pieces::list("machines", here, |out, row| pieces::push(out, &row))))
}

#[derive(Serialize)]
struct LoadView<'a> {
    machine: &'a str,
    pool: splitcore_core::event::Role,
    state: MachineState,
    legs: u32,
    prompt_pending_tokens: u64,
    kv_tokens: u64,
    kv_capacity_tokens: u64,
}

/// `GET /v1/loads`.
pub(super) async fn loads(State(app): State<Arc<App>>) -> Answer {
    let limit = app.options.write_timeout_s;
    let write = |out: &mut Vec<u8>, row: RowView| {
        let load = LoadView {
            machine: &row.name,
            pool: row.pool,
            state: row.state,
            legs: row.legs,
            prompt_pending_tokens: row.prompt_pending_tokens,
            kv_tokens: row.kv_tokens,
            kv_capacity_tokens: row.kv_capacity_tokens,
        };
        pieces::push(out, &load);
    };
    Ok(pieces::answer(limit, pieces::list("loads", rows(app), write)))
}

fn machine_name(name: Name) -> Result<String, ApiError> {
    name.map(|Path(name)| name).map_err(|error| ApiError::invalid("name", error.body_text()))
}

/// `DELETE /v1/machines/{name}`.
pub(super) async fn lose(State(app): State<Arc<App>>, name: Name) -> Answer {
    let name = machine_name(name)?;
    app.places_for_others()?;
    let recovered = app.host.lose(&name)?;
    tracing::info!(
        machine = name,
        placed = recovered.placed.len(),
        parked = recovered.parked.len(),
        failed = recovered.failed.len(),
        "lost"
    );
    Ok(recovered_text(app.options.write_timeout_s, recovered))
}

/// `{"placed": [...], "parked": [...], "failed": [...]}`, which may be all that lives.
fn recovered_text(limit: f64, recovered: Recovered) -> Response {
    let Recovered { placed, parked, failed } = recovered;
    let mut lists = [("{\"placed", placed), ("],\"parked", parked), ("],\"failed", failed)].into_iter();
    let mut ids = Vec::new().into_iter();
    let mut separator = "";
    pieces::answer(limit, move |out: &mut Vec<u8>| {
        if let Some(id) = ids.next() {
            out.extend_from_slice(separator.as_bytes());
            pieces::push(out, &id);
            separator = ",";
            return true;
        }
        let Some((name, list)) = lists.next() else {
            out.extend_from_slice(b"]}");
            return false;
        };
        out.extend_from_slice(format!("{name}\":[").as_bytes());
        (ids, separator) = (list.into_iter(), "");
        true
    })
}

#[derive(Serialize)]
struct Draining {
    draining: bool,
}

/// `POST /v1/machines/{name}/drain`.
pub(super) async fn drain(State(app): State<Arc<App>>, name: Name) -> Answer {
    let name = machine_name(name)?;
    app.host.drain(&name)?;
    tracing::info!(machine = name, "drains");
    Ok(answer(StatusCode::OK, &Draining { draining: true }))
}

/// `POST /v1/machines/{name}/undrain`.
pub(super) async fn undrain(State(app): State<Arc<App>>, name: Name) -> Answer {
    let name = machine_name(name)?;
    app.host.undrain(&name)?;
    tracing::info!(machine = name, "takes work again");
    Ok(answer(StatusCode::OK, &Draining { draining: false }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportsBody {
    reports: Vec<ReportSpec>,
}

#[derive(Serialize)]
struct Reported {
    applied: usize,
    unknown: Vec<String>,
}

/// `POST /v1/reports`.
pub(super) async fn report(State(app): State<Arc<App>>, request: Request) -> Answer {
    app.places_for_others()?;
    let body: ReportsBody = json(&app, request).await?;
    app.check_batch("reports", body.reports.len())?;
    let reports = body.reports.len();
    let unknown = app.in_turns(body.reports, |app, some| app.host.report(some)).await?;
    Ok(answer(StatusCode::OK, &Reported { applied: reports - unknown.len(), unknown }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SloBody {
    #[serde(default)]
    ttft_s: Option<f64>,
    #[serde(default)]
    tbt_s: Option<f64>,
}

#[derive(Serialize)]
struct SloView {
    class: u32,
    ttft_s: Option<f64>,
    tbt_s: Option<f64>,
}

/// `PUT /v1/classes/{class}`: the limits of a class of requests; without any, none.
pub(super) async fn set_slo(State(app): State<Arc<App>>, class: Name, request: Request) -> Answer {
    let class = number("class", &machine_name(class)?, "a whole number of 0 to 2^32 - 1")?;
    let SloBody { ttft_s, tbt_s } = json(&app, request).await?;
    let ns = |field: &str, given: Option<f64>| match given {
        None => Ok(u64::MAX),
        Some(seconds) if (1e-9..=1e9).contains(&seconds) => Ok((seconds * 1e9) as u64),
        Some(seconds) => Err(ApiError::invalid(
            field,
            format!("{field}: expected more than 0 and at most 1000000000 seconds, got {seconds}"),
        )),
    };
    let slo = Slo { ttft_ns: ns("ttft_s", ttft_s)?, tbt_ns: ns("tbt_s", tbt_s)? };
    app.host.set_slo(class, (ttft_s.is_some() || tbt_s.is_some()).then_some(slo))?;
    Ok(answer(StatusCode::OK, &SloView { class, ttft_s, tbt_s }))
}
