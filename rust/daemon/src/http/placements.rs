//! Placements: made, told about, looked at.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use splitcore_core::event::Arrival;
use splitcore_core::placement::{Mode, Step};

use super::App;
use super::body::{answer, json, json_held, json_or_default, number, query, raw};
use super::errors::{ApiError, Inner};
use super::pieces;
use crate::host::{Ask, Fact, Fault, Kind, Machine, Placed, Since};

type Answer = Result<Response, ApiError>;
type Id = Result<Path<String>, PathRejection>;

/// Events in one answer at most.
const EVENTS_PER_ANSWER: usize = 1000;
/// Bytes of events from which an answer ends; whoever asked goes on from there.
const EVENT_BYTES: usize = 64 << 10;

fn yes() -> bool {
    true
}

/// A placement as it is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaceBody {
    #[serde(default)]
    request_id: Option<u64>,
    prompt_tokens: u32,
    max_new_tokens: u32,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    class: u32,
    #[serde(default = "yes")]
    resumable: bool,
    #[serde(default)]
    pin_token: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

impl PlaceBody {
    fn ask(self) -> Result<Ask, ApiError> {
        for (field, given) in [("prompt_tokens", self.prompt_tokens), ("max_new_tokens", self.max_new_tokens)]
        {
            if given == 0 {
                return Err(ApiError::invalid(field, format!("{field}: expected at least 1, got 0")));
            }
        }
        let arrival = Arrival {
            class: self.class,
            priority: self.priority,
            resumable: self.resumable,
            ..Arrival::new(0, self.prompt_tokens, self.max_new_tokens)
        };
        Ok(Ask { request: self.request_id, arrival, pin_token: self.pin_token, dry_run: self.dry_run })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody {
    placements: Vec<PlaceBody>,
}

#[derive(Serialize)]
struct MachineView<'a> {
    name: &'a str,
    url: Option<&'a str>,
}

#[derive(Serialize)]
struct WhyView<'a> {
    prompt_step: Step,
    token_step: Step,
    prompt_load: u64,
    token_load: u64,
    runner_up: Option<&'a str>,
}

/// A placement as it is told.
#[derive(Serialize)]
struct PlacedView<'a> {
    request_id: u64,
    attempt: u32,
    prompt: Option<MachineView<'a>>,
    token: Option<MachineView<'a>>,
    transfer: Option<Mode>,
    lease_s: Option<f64>,
    why: WhyView<'a>,
}

fn machine(machine: Option<&Arc<Machine>>) -> Option<MachineView<'_>> {
    machine.map(|machine| MachineView { name: &machine.name, url: machine.url.as_deref() })
}

fn view<'a>(app: &App, placed: &'a Placed) -> PlacedView<'a> {
    let why = placed.placement.why;
    PlacedView {
        request_id: placed.placement.request.0,
        attempt: placed.placement.attempt.0,
        prompt: machine(placed.prompt.as_ref()),
        token: machine(placed.token.as_ref()),
        transfer: placed.placement.transfer(),
        lease_s: (app.options.lease_s > 0.0).then_some(app.options.lease_s),
        why: WhyView {
            prompt_step: why.prompt_step,
            token_step: why.token_step,
            prompt_load: why.prompt_load,
            token_load: why.token_load,
            runner_up: placed.runner_up.as_ref().map(|machine| machine.name.as_str()),
        },
    }
}

/// `POST /v1/placements`.
pub(super) async fn place(State(app): State<Arc<App>>, request: Request) -> Answer {
    app.places_for_others()?;
    let body: PlaceBody = json(&app, request).await?;
    app.refuse_when_draining()?;
    let ask = body.ask()?;
    let placed = app.host.place(ask).map_err(pinned)?;
    Ok(answer(status(&placed), &view(&app, &placed)))
}

/// What its success is called.
fn status(placed: &Placed) -> StatusCode {
    if placed.dry_run { StatusCode::OK } else { StatusCode::CREATED }
}

/// The only machine that a placement names.
fn pinned(fault: Fault) -> ApiError {
    let param = matches!(fault, Fault::UnknownMachine(_)).then(|| "pin_token".to_owned());
    let error = ApiError::from(fault);
    ApiError { param: param.or(error.param), ..error }
}

#[derive(Serialize)]
#[serde(untagged)]
enum ItemView<'a> {
    Placed { status: u16, placement: PlacedView<'a> },
    Failed { status: u16, error: Inner<'a> },
}

/// `POST /v1/placements/batch`.
pub(super) async fn place_batch(State(app): State<Arc<App>>, request: Request) -> Answer {
    app.places_for_others()?;
    let (body, bytes) = json_held::<BatchBody>(&app, request).await?;
    app.refuse_when_draining()?;
    app.check_batch("placements", body.placements.len())?;
    let asks = body.placements.into_iter().enumerate().map(|(at, each)| {
        each.ask().map_err(|error| {
            let param = error.param.map(|param| format!("placements[{at}].{param}"));
            ApiError { message: format!("placements[{at}].{}", error.message), param, ..error }
        })
    });
    let asks: Vec<Ask> = asks.collect::<Result<_, _>>()?;
    app.host.check_new(&asks)?;
    let placed = app.in_turns(asks, |app, some| app.host.place_each(some)).await?;
    let limit = app.options.write_timeout_s;
    // The answer is about as long as the body that asked for it, which counts until it has gone.
    let write = move |out: &mut Vec<u8>, each: Result<Placed, Fault>| {
        let _held = &bytes;
        match each.map_err(pinned) {
            Ok(placed) => {
                let (status, placement) = (status(&placed).as_u16(), view(&app, &placed));
                pieces::push(out, &ItemView::Placed { status, placement });
            }
            Err(error) => {
                pieces::push(out, &ItemView::Failed { status: error.status.as_u16(), error: error.inner() });
            }
        }
    };
    Ok(pieces::answer(limit, pieces::list("results", placed.into_iter(), write)))
}

/// The id in a path. One that is no number was never given.
fn request_id(id: Id) -> Result<u64, ApiError> {
    let given = id.map_err(|error| ApiError::invalid("id", error.body_text()))?;
    number("id", &given.0, "a whole number of 0 to 2^64 - 1")
}

#[derive(Serialize)]
struct Applied {
    applied: bool,
}

fn tell(app: &App, fact: Fact, id: u64, attempt: Option<u32>) -> Answer {
    app.places_for_others()?;
    let applied = app.host.fact(fact, id, attempt)?;
    Ok(answer(StatusCode::OK, &Applied { applied }))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FactBody {
    #[serde(default)]
    attempt: Option<u32>,
}

/// `POST /v1/placements/{id}/prefill_done`.
pub(super) async fn prefill_done(State(app): State<Arc<App>>, id: Id, request: Request) -> Answer {
    let (id, body) = (request_id(id)?, json_or_default::<FactBody>(&app, request).await?);
    tell(&app, Fact::PrefillDone, id, body.attempt)
}

/// `POST /v1/placements/{id}/source_released`.
pub(super) async fn source_released(State(app): State<Arc<App>>, id: Id, request: Request) -> Answer {
    let (id, body) = (request_id(id)?, json_or_default::<FactBody>(&app, request).await?);
    tell(&app, Fact::SourceReleased, id, body.attempt)
}

/// `POST /v1/placements/{id}/renew`.
pub(super) async fn renew(State(app): State<Arc<App>>, id: Id, request: Request) -> Answer {
    let (id, body) = (request_id(id)?, json_or_default::<FactBody>(&app, request).await?);
    tell(&app, Fact::Renew, id, body.attempt)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgressBody {
    tokens: u32,
    #[serde(default)]
    attempt: Option<u32>,
}

/// `POST /v1/placements/{id}/progress`.
pub(super) async fn progress(State(app): State<Arc<App>>, id: Id, request: Request) -> Answer {
    let id = request_id(id)?;
    let body: ProgressBody = json(&app, request).await?;
    tell(&app, Fact::Progress(body.tokens), id, body.attempt)
}

/// `DELETE /v1/placements/{id}`.
pub(super) async fn end(State(app): State<Arc<App>>, id: Id, request: Request) -> Answer {
    let id = request_id(id)?;
    let [outcome, attempt] = query(request.uri().query(), ["outcome", "attempt"])?;
    let attempt = attempt.map(|given| number("attempt", given, "a whole number")).transpose()?;
    let fact = match outcome.unwrap_or("finished") {
        "finished" => Fact::Finish,
        "cancelled" => Fact::Cancel,
        _ => {
            return Err(ApiError::invalid("outcome", "outcome: expected finished or cancelled"));
        }
    };
    tell(&app, fact, id, attempt)
}

#[derive(Serialize)]
struct LiveView<'a> {
    request_id: u64,
    state: &'static str,
    delivered: u32,
    placement: Option<PlacedView<'a>>,
}

/// `GET /v1/placements/{id}`.
pub(super) async fn show(State(app): State<Arc<App>>, id: Id) -> Answer {
    let request_id = request_id(id)?;
    let (placed, delivered) = app.host.find(request_id)?;
    let placement = placed.as_ref().map(|placed| view(&app, placed));
    let state = if placement.is_some() { "placed" } else { "parked" };
    Ok(answer(StatusCode::OK, &LiveView { request_id, state, delivered, placement }))
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum KindView<'a> {
    Placed {
        placement: PlacedView<'a>,
    },
    Parked {
        request_id: u64,
    },
    Expired {
        request_id: u64,
    },
    Failed {
        request_id: u64,
        reason: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        fault: Option<&'a str>,
    },
    Drained {
        machine: &'a str,
    },
}

#[derive(Serialize)]
struct EventView<'a> {
    seq: u64,
    #[serde(flatten)]
    kind: KindView<'a>,
}

/// `GET /v1/events`: at once, or as soon as there is one within `wait_s`.
pub(super) async fn events(State(app): State<Arc<App>>, request: Request) -> Answer {
    let [since, wait_s] = query(request.uri().query(), ["since", "wait_s"])?;
    let since = since.map_or(Ok(0), |given| number("since", given, "a whole number"))?;
    let most = app.options.event_wait_max_s;
    let expected = format!("0 to {most} seconds (event_wait_max_s)");
    let wait_s: f64 = wait_s.map_or(Ok(0.0), |given| number("wait_s", given, &expected))?;
    if !(0.0..=most).contains(&wait_s) {
        return Err(ApiError::invalid("wait_s", format!("wait_s: expected {expected}, got {wait_s}")));
    }
    let mut newest = app.host.watch_events();
    let mut found = app.host.events(since, EVENTS_PER_ANSWER)?;
    if found.events.is_empty() && wait_s > 0.0 {
        let limit = Duration::from_secs_f64(wait_s);
        let next = found.next;
        let come = newest.wait_for(|&newest| newest > next);
        tokio::select! {
            () = app.drained() => {}
            _ = tokio::time::timeout(limit, come) => {}
        }
        found = app.host.events(since, EVENTS_PER_ANSWER)?;
    }
    Ok(raw(StatusCode::OK, "application/json", events_text(&app, &found)))
}

/// Events as JSON, as many as one answer may have.
fn events_text(app: &App, found: &Since) -> Vec<u8> {
    let Since { events, next, missed } = found;
    let mut next = *next;
    let mut out = b"{\"events\":[".to_vec();
    for (at, (seq, kind)) in events.iter().enumerate() {
        if out.len() >= EVENT_BYTES {
            next = *seq;
            break;
        }
        if at > 0 {
            out.push(b',');
        }
        pieces::push(&mut out, &EventView { seq: *seq, kind: kind_view(app, kind) });
    }
    out.extend_from_slice(format!("],\"next\":{next},\"missed\":{missed}}}").as_bytes());
    out
}

fn kind_view<'a>(app: &App, kind: &'a Kind) -> KindView<'a> {
    match kind {
        Kind::Placed(placed) => KindView::Placed { placement: view(app, placed) },
        Kind::Parked { request } => KindView::Parked { request_id: *request },
        Kind::Expired { request } => KindView::Expired { request_id: *request },
        Kind::Failed { request, failure } => {
            KindView::Failed { request_id: *request, reason: failure.reason, fault: failure.fault.as_deref() }
        }
        Kind::Drained { machine } => KindView::Drained { machine },
    }
}
