//! The report of a run: objectives at their edges, the shape of the JSON, the bytes of the CSV.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use splitcore_sim::SimError;
use splitcore_sim::report::{
    AdmissionReport, GapHistogram, Inputs, MachineTally, NO_TIME_NS, Outcome, Percentiles, PoolMoves,
    Reference, RequestLimits, RequestRow, RunFacts, SloLimits, SloReport, Summary, TbtRule, TransferKind,
    TransferTally, write_requests_csv, write_summary_json,
};

const IDLE: Reference = Reference { ttft_ns: 1000, tbt_ns: 100, e2e_ns: 1400 };

/// A request of five tokens that took exactly the idle time.
const ROW: RequestRow = RequestRow {
    request_id: 0,
    arrival_ns: 0,
    prompt_tokens: 100,
    output_tokens: 5,
    ttft_ns: 1000,
    e2e_ns: 1400,
    tbt_max_ns: 100,
    prompt_machine: 0,
    token_machine: 1,
    attempts: 1,
    outcome: Outcome::Finished,
};

const REJECTED: RequestRow = RequestRow {
    ttft_ns: NO_TIME_NS,
    e2e_ns: NO_TIME_NS,
    tbt_max_ns: NO_TIME_NS,
    prompt_machine: -1,
    token_machine: -1,
    attempts: 0,
    outcome: Outcome::Rejected,
    ..ROW
};

fn slo(rows: &[RequestRow]) -> SloReport {
    SloReport::of(rows, TbtRule::MeanGap, SloLimits::default(), &|_, _| IDLE)
}

#[test]
fn the_default_limits_are_those_of_the_paper() {
    let limits = SloLimits::default();
    assert_eq!(limits.ttft, Percentiles { p50: 2.0, p90: 3.0, p99: 6.0 });
    assert_eq!(limits.tbt, Percentiles { p50: 1.25, p90: 1.5, p99: 5.0 });
    assert_eq!(limits.e2e, Percentiles { p50: 1.25, p90: 1.5, p99: 5.0 });
    assert_eq!(limits.attainment, RequestLimits { ttft: 6.0, tbt: 5.0, e2e: 5.0 });
}

#[test]
fn a_ratio_on_its_limit_misses_it() {
    // With one request all percentiles are its ratio; the median's limit is the tightest.
    let against =
        |idle: Reference| SloReport::of(&[ROW], TbtRule::MeanGap, SloLimits::default(), &|_, _| idle);
    let on_edge = against(Reference { ttft_ns: 500, ..IDLE });
    assert_eq!(on_edge.slowdown.ttft.p50, 2.0);
    assert!(!on_edge.met);
    assert!(against(Reference { ttft_ns: 501, ..IDLE }).met);
    let on_edge = against(Reference { tbt_ns: 80, ..IDLE });
    assert_eq!(on_edge.slowdown.tbt.p50, 1.25);
    assert!(!on_edge.met);
    assert!(against(Reference { tbt_ns: 81, ..IDLE }).met);
    let on_edge = against(Reference { e2e_ns: 1120, ..IDLE });
    assert_eq!(on_edge.slowdown.e2e.p50, 1.25);
    assert!(!on_edge.met);
    assert!(against(Reference { e2e_ns: 1121, ..IDLE }).met);
    assert!(!against(Reference { e2e_ns: 0, ..IDLE }).met, "a reference without time");
}

#[test]
fn every_one_of_the_nine_limits_counts() {
    let rows = [ROW; 3]; // every slowdown is exactly 1
    assert!(slo(&rows).met);
    for objective in 0..3 {
        for percentile in 0..3 {
            let mut limits = SloLimits::default();
            let of = [&mut limits.ttft, &mut limits.tbt, &mut limits.e2e].into_iter().nth(objective).unwrap();
            *[&mut of.p50, &mut of.p90, &mut of.p99].into_iter().nth(percentile).unwrap() = 1.0;
            let report = SloReport::of(&rows, TbtRule::MeanGap, limits, &|_, _| IDLE);
            assert!(!report.met, "objective {objective}, percentile {percentile}");
        }
    }
}

#[test]
fn attainment_is_joint_and_strict() {
    let slow_first = RequestRow { ttft_ns: 6000, e2e_ns: 6400, ..ROW };
    let slow_between = RequestRow { e2e_ns: 1000 + 4 * 500, ..ROW };
    let slow_last = RequestRow { ttft_ns: 5400, e2e_ns: 7000, ..ROW };
    let just_within = RequestRow { ttft_ns: 5999, e2e_ns: 6399, ..ROW };
    let rows = [ROW, slow_first, slow_between, slow_last, just_within, REJECTED];
    assert_eq!(slo(&rows).attainment, 2.0 / 6.0);
    let limits =
        SloLimits { attainment: RequestLimits { ttft: 6.1, tbt: 5.1, e2e: 5.1 }, ..SloLimits::default() };
    assert_eq!(SloReport::of(&rows, TbtRule::MeanGap, limits, &|_, _| IDLE).attainment, 5.0 / 6.0);
}

#[test]
fn one_token_keeps_every_limit_on_tbt() {
    let one_token = RequestRow { output_tokens: 1, e2e_ns: 1000, tbt_max_ns: NO_TIME_NS, ..ROW };
    let report = slo(&[one_token; 4]);
    assert!(report.met, "no TBT breaks no limit");
    assert!(report.slowdown.tbt.p50.is_nan());
    assert_eq!(report.attainment, 1.0);
    // Three of four have a TBT: its percentiles are theirs.
    let report = slo(&[one_token, ROW, ROW, RequestRow { e2e_ns: 1800, ..ROW }]);
    assert_eq!(report.slowdown.tbt.p50, 1.0);
    assert!((report.slowdown.tbt.p90 - 1.8).abs() < 1e-12);
}

#[test]
fn what_did_not_finish_is_infinitely_slow() {
    let mut rows = vec![ROW; 99];
    rows.push(REJECTED);
    // Rank 98.01 of 0..=99 touches the infinite one.
    let report = slo(&rows);
    assert_eq!(report.slowdown.ttft.p99, f64::INFINITY);
    assert_eq!(report.slowdown.ttft.p90, 1.0);
    assert!(!report.met);
    assert_eq!(report.attainment, 0.99);
    rows.push(ROW); // now rank 99 exactly, the last finite one
    let report = slo(&rows);
    assert_eq!(report.slowdown.ttft.p99, 1.0);
    assert!(report.met);
}

#[test]
fn a_run_without_requests_meets_nothing() {
    let report = slo(&[]);
    assert!(!report.met);
    assert!(report.attainment.is_nan());
}

#[test]
fn the_rule_changes_tbt_but_not_tpot() {
    let summary = summary_of(&[ROW], TbtRule::AsPublished);
    assert_eq!((summary.tbt_s.mean, summary.tpot_s.mean), (80e-9, 100e-9));
    assert_eq!(summary.slo.slowdown.tbt.p50, 0.8);
    let summary = summary_of(&[ROW], TbtRule::MeanGap);
    assert_eq!((summary.tbt_s.mean, summary.tpot_s.mean), (100e-9, 100e-9));
}

/// A summary with some of everything besides the rows.
fn summary_of(rows: &[RequestRow], tbt_rule: TbtRule) -> Summary {
    let mut gaps = GapHistogram::new();
    gaps.record_n(2, 4);
    let mut transfers = TransferTally::default();
    transfers.record(TransferKind::Serialized, 1000, 30_000_000);
    transfers.record(TransferKind::LayerWise, 3000, 10_000_000);
    let mut machine = MachineTally::new("dgx-a100/0", "prompt");
    machine.record_pass(400_000_000, 1500, 0);
    machine.record_pass(100_000_000, 500, 3);
    machine.record_kv(2000);
    machine.record_kv(700);
    let mut idle = MachineTally::new("dgx-h100/0", "token");
    idle.hardware = Some("dgx-h100:tp8".to_owned());
    Summary::new(Inputs {
        rows,
        gaps: &gaps,
        transfers: &transfers,
        machines: &[machine, idle],
        tbt_rule,
        limits: SloLimits::default(),
        reference: &|_, _| IDLE,
        pools: PoolMoves { to_mixed: 3, to_home: 2 },
        facts: RunFacts {
            admission: AdmissionReport::default(),
            out_of_range_lookups: 7,
            cost_model: "measured".to_owned(),
            policy: "mixed-pool".to_owned(),
            model: "bloom-176b".to_owned(),
            trace: "conversation".to_owned(),
            notes: Vec::new(),
            transfer_mode: "auto".to_owned(),
            seed: 42,
            evictions: 1,
            pauses: 5,
            events: 99,
            duration_ns: 1_000_000_000,
            wall_s: 0.5,
            digest: 0xab,
        },
    })
}

#[test]
fn the_summary_has_its_shape() {
    let outcomes = [Outcome::Failed, Outcome::Cancelled, Outcome::Unfinished];
    let mut rows = vec![ROW, REJECTED];
    rows.extend(outcomes.map(|outcome| RequestRow { outcome, ..REJECTED }));
    let found = serde_json::to_value(summary_of(&rows, TbtRule::MeanGap)).unwrap();
    let all_null = json!({"mean": null, "p50": null, "p90": null, "p99": null, "max": null});
    let three_null = json!({"p50": null, "p90": null, "p99": null});
    let expected = json!({
        "requests": {"submitted": 5, "completed": 1, "rejected": 1, "failed": 1, "cancelled": 1, "unfinished": 1},
        "ttft_s": all_null, "tbt_s": all_null, "tpot_s": all_null, "e2e_s": all_null,
        "slo": {
            "met": false,
            "slowdown": {"ttft": three_null, "tbt": three_null, "e2e": three_null},
            "limits": {
                "ttft": {"p50": 2.0, "p90": 3.0, "p99": 6.0},
                "tbt": {"p50": 1.25, "p90": 1.5, "p99": 5.0},
                "e2e": {"p50": 1.25, "p90": 1.5, "p99": 5.0},
                "attainment": {"ttft": 6.0, "tbt": 5.0, "e2e": 5.0},
            },
            "attainment": 0.2,
        },
        "transfer": {
            "count": 2, "bytes": 4000, "serialized": 1, "layer_wise": 1,
            "visible_s": {"mean": 0.02, "p50": 0.02, "p99": 0.0298, "max": 0.03},
        },
        "admission": {"rule": "", "slo_ttft_s": null, "slo_tbt_s": null, "attainment": null, "rejected": {}},
        "gaps_s": {"count": 4, "mean": 2e-9, "p50": 2e-9, "p90": 2e-9, "p99": 2e-9, "max": 2e-9},
        "pools": {"to_mixed": 3, "to_home": 2},
        "machines": [
            {
                "name": "dgx-a100/0", "role": "prompt", "utilisation": 0.5, "passes": 2, "prompt_tokens": 2000,
                "decode_tokens": 3, "batch_decodes_mean": 1.5, "batch_decodes_max": 3,
                "batch_prompt_tokens_mean": 1000.0, "peak_kv_tokens": 2000,
            },
            {
                "name": "dgx-h100/0", "role": "token", "hardware": "dgx-h100:tp8", "utilisation": 0.0, "passes": 0,
                "prompt_tokens": 0, "decode_tokens": 0, "batch_decodes_mean": null, "batch_decodes_max": 0,
                "batch_prompt_tokens_mean": null, "peak_kv_tokens": 0,
            },
        ],
        "out_of_range_lookups": 7, "cost_model": "measured", "policy": "mixed-pool", "model": "bloom-176b",
        "trace": "conversation", "notes": [], "transfer_mode": "auto", "rate_rps": null, "seed": 42, "evictions": 1, "pauses": 5, "events": 99,
        "duration_s": 1.0, "wall_s": 0.5, "digest": "00000000000000ab",
    });
    assert_eq!(found, expected);
}

#[test]
fn a_run_of_nothing_is_still_json() {
    let empty = Summary::new(Inputs {
        rows: &[],
        gaps: &GapHistogram::new(),
        transfers: &TransferTally::default(),
        machines: &[MachineTally::new("a", "mixed")],
        tbt_rule: TbtRule::MeanGap,
        limits: SloLimits::default(),
        reference: &|_, _| IDLE,
        pools: PoolMoves::default(),
        facts: RunFacts::default(),
    });
    let text = serde_json::to_string(&empty).unwrap();
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    let found: Value = serde_json::from_str(&text).unwrap();
    for missing in ["/ttft_s/mean", "/slo/attainment", "/transfer/visible_s/max", "/machines/0/utilisation"] {
        assert_eq!(found.pointer(missing), Some(&Value::Null), "{missing}");
    }
}

/// A fresh folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the test folder can be made");
    folder
}

#[test]
fn the_requests_file_to_the_byte() {
    let rows = [
        RequestRow {
            request_id: 3,
            arrival_ns: 1_500_000_001,
            ttft_ns: 100_000_000,
            e2e_ns: 400_000_000,
            output_tokens: 4,
            tbt_max_ns: 150_000_000,
            ..ROW
        },
        RequestRow { request_id: 4, output_tokens: 1, e2e_ns: 1000, tbt_max_ns: 0, token_machine: -1, ..ROW },
        RequestRow { request_id: 5, arrival_ns: 2_000_000_000, ..REJECTED },
        RequestRow { request_id: 6, e2e_ns: NO_TIME_NS, attempts: 4, outcome: Outcome::Failed, ..ROW },
    ];
    let folder = folder("requests_csv");
    let path = folder.join("requests.csv");
    write_requests_csv(&path, &rows, &["dgx-h100/0", "a,b"]).unwrap();
    let expected = "\
request_id,arrival_s,prompt_tokens,output_tokens,ttft_s,tbt_mean_s,tbt_max_s,e2e_s,prompt_machine,token_machine,attempts,outcome
3,1.500000001,100,4,0.1,0.1,0.15,0.4,dgx-h100/0,\"a,b\",1,finished
4,0,100,1,0.000001,,,0.000001,dgx-h100/0,,1,finished
5,2,100,5,,,,,,,0,rejected
6,0,100,5,0.000001,,0.0000001,,dgx-h100/0,\"a,b\",4,failed
";
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    // Writing again replaces it; nothing else is left in the folder.
    write_requests_csv(&path, &rows[..1], &["x", "y"]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn the_summary_file_reads_back() {
    let path = folder("summary_json").join("summary.json");
    let summary = summary_of(&[ROW], TbtRule::MeanGap);
    write_summary_json(&path, &summary).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.ends_with("}\n"));
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), serde_json::to_value(&summary).unwrap());
}

#[test]
fn a_file_that_cannot_be_written_leaves_nothing() {
    let folder = folder("unwritable");
    let missing = folder.join("no/such/requests.csv");
    let error = write_requests_csv(&missing, &[ROW], &["a", "b"]).unwrap_err();
    assert!(matches!(&error, SimError::Io { file, .. } if *file == missing.display().to_string()), "{error}");
    // A folder stands where the file should go: the rename fails.
    let taken = folder.join("taken");
    fs::create_dir_all(taken.join("inside")).unwrap();
    assert!(write_requests_csv(&taken, &[ROW], &["a", "b"]).is_err());
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["taken"]);
}
