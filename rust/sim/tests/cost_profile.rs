//! Profiles as text, fits of small measurement files, and what is said about wrong ones.
#![allow(clippy::unwrap_used)]

use splitcore_sim::SimError;
use splitcore_sim::cost::{CostKind, CostModel, Profile, fit_file, fit_text};
use splitcore_sim::machines::{Hardware, MachineKind, Model};

const VALID: &str = "format = 'splitcore-profile'
version = 1
[[machine]]
model = 'bloom-176b'
hardware = 'dgx-h100'
tensor_parallel = 8
context_ms_per_token = 0.001
batched_prompt_tokens = 500
prompt_min_tokens = 100
prompt_max_tokens = 4000
context_max_tokens = 4000
batch_max_requests = 9
total_prompt_max_tokens = 4000
prompt_ms_by_tokens = [
    [100, 20.0],
    [500, 60.0],
]
batched_prompt_ms_by_tokens = [[500, 60.0], [1000, 80.0]]
decode_ms_by_batch = [[1, 10.0], [5, 12.0]]
splitwise_sim_prompt_ms_by_tokens = [[100, 21.0], [1000, 111.0]]
splitwise_sim_token_ms_by_tokens = [[100, 11.0], [1000, 20.0]]
";

const HEADER: &str =
    "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel";

fn csv(rows: &[&str]) -> String {
    format!("{HEADER}\n{}\n", rows.join("\n"))
}

/// Line, field and the whole text of an input error.
fn input(error: SimError) -> (u64, String, String) {
    let text = error.to_string();
    match error {
        SimError::Input { line, field, .. } => (line, field, text),
        other => panic!("not an input error: {other}"),
    }
}

#[test]
fn builtin_round_trips() {
    let profile = Profile::builtin();
    let text = profile.to_toml();
    assert_eq!(Profile::from_toml(&text, "again.toml").unwrap(), profile);
    assert_eq!(Profile::from_toml(&text, "again.toml").unwrap().to_toml(), text);
}

#[test]
fn hardware_may_stand_under_the_machine_name() {
    let profile = Profile::from_toml(VALID, "valid.toml").unwrap();
    let kind = MachineKind::whole(Hardware::H100);
    let cost = CostModel::new(CostKind::Measured, &profile, Model::Bloom176b, &kind).unwrap();
    assert_eq!(cost.prefill_ns(100), 20_000_000);
}

#[test]
fn wrong_profiles_name_line_and_field() {
    for (from, to, line, field) in [
        ("'splitcore-profile'", "'other'", 1, "format"),
        ("version = 1", "version = 2", 2, "version"),
        ("tensor_parallel = 8", "tensor_parallel = 0", 6, "tensor_parallel"),
        ("tensor_parallel = 8", "tensor_parallel = 'x'", 6, "toml"),
        ("_token = 0.001", "_token = -0.001", 7, "context_ms_per_token"),
        ("_token = 0.001", "_token = nan", 7, "context_ms_per_token"),
        ("batched_prompt_tokens = 500", "batched_prompt_tokens = 0", 8, "batched_prompt_tokens"),
        ("prompt_min_tokens = 100", "prompt_min_tokens = 4001", 9, "prompt_min_tokens"),
        ("    [500, 60.0],\n", "", 14, "prompt_ms_by_tokens"),
        ("[500, 60.0],\n]", "[100, 60.0],\n]", 16, "prompt_ms_by_tokens"),
        ("[500, 60.0],\n]", "[500, 0.0],\n]", 16, "prompt_ms_by_tokens"),
        ("[100, 20.0]", "[0, 20.0]", 15, "prompt_ms_by_tokens"),
        ("[100, 20.0]", "[100, 5.0]", 15, "prompt_ms_by_tokens"),
        ("[100, 20.0]", "[100, inf]", 15, "prompt_ms_by_tokens"),
        ("[500, 60.0],\n]", "[500, 19.7],\n]", 16, "prompt_ms_by_tokens"),
        ("[1000, 80.0]", "[1000, 59.0]", 18, "batched_prompt_ms_by_tokens"),
        ("[5, 12.0]", "[5, 9.9]", 19, "decode_ms_by_batch"),
        ("[1000, 20.0]", "[1000, -1.0]", 21, "splitwise_sim_token_ms_by_tokens"),
        ("batch_max_requests = 9\n", "", 3, "toml"),
        ("batch_max_requests = 9", "batch_most = 9", 12, "toml"),
        ("[[machine]]", "[[engine]]", 3, "toml"),
    ] {
        assert!(VALID.contains(from), "{from}");
        let text = VALID.replacen(from, to, 1);
        let (at, name, told) = input(Profile::from_toml(&text, "wrong.toml").unwrap_err());
        assert_eq!((at, name.as_str()), (line, field), "{to}: {told}");
        assert!(told.starts_with(&format!("wrong.toml:{line}: {field}: expected ")), "{told}");
    }
}

#[test]
fn knots_that_fall_below_zero_only_beyond_the_checked_sizes_are_fine() {
    // 10 ms at batch 1, falling to a hair above zero at 512.
    let slow = VALID.replace("[5, 12.0]", "[5, 9.922]");
    assert!(Profile::from_toml(&slow, "slow.toml").is_ok());
}

#[test]
fn a_profile_holds_each_machine_once_and_at_least_one() {
    let twice = VALID.to_owned() + VALID.split_once("version = 1\n").unwrap().1;
    let (line, field, told) = input(Profile::from_toml(&twice, "twice.toml").unwrap_err());
    assert_eq!((line, field.as_str()), (22, "machine"), "{told}");
    let none = "format = 'splitcore-profile'\nversion = 1\n";
    let (_, field, told) = input(Profile::from_toml(none, "none.toml").unwrap_err());
    assert_eq!(field, "machine", "{told}");
}

#[test]
fn a_missing_file_is_named() {
    for error in [Profile::load("no/such.toml").unwrap_err(), fit_file("no/such.csv").unwrap_err()] {
        assert!(matches!(&error, SimError::Io { file, .. } if file.starts_with("no/such.")), "{error}");
    }
}

/// Exact data: prompts 10 + 0.1 a token, decode 20 + 2 for each request + 0.001 a token of context.
fn exact_rows() -> Vec<String> {
    [(100, 1, 10), (200, 1, 10), (400, 1, 10), (200, 2, 10), (200, 4, 10), (200, 1, 800)]
        .into_iter()
        .map(|(prompt, batch, output)| {
            let prompt_ms = 10.0 + 0.1 * f64::from(prompt * batch);
            let context = f64::from(batch) * (f64::from(prompt) + f64::from(output) / 2.0);
            let token_ms = 20.0 + 2.0 * f64::from(batch) + 0.001 * context;
            format!("mine,my box,{prompt},{batch},{output},{prompt_ms},{token_ms},1")
        })
        .collect()
}

#[test]
fn fit_finds_the_law_behind_exact_data() {
    let rows = exact_rows();
    let text = csv(&rows.iter().map(String::as_str).collect::<Vec<_>>());
    let (profile, report) = fit_text(&text, "mine.csv").unwrap();
    let [machine] = profile.machines() else { panic!("one machine") };
    assert_eq!(
        (machine.model.as_str(), machine.hardware.as_str(), machine.tensor_parallel),
        ("mine", "my box", 1)
    );
    assert!((machine.context_ms_per_token - 0.001).abs() < 1e-12);
    assert_eq!(machine.batched_prompt_tokens, 200);
    let xs = |knots: &[splitcore_sim::cost::Knot]| knots.iter().map(|knot| knot.x).collect::<Vec<_>>();
    assert_eq!(xs(&machine.prompt_knots), [100, 200, 400]);
    assert_eq!(xs(&machine.batched_prompt_knots), [200, 400, 800]);
    assert_eq!(xs(&machine.decode_knots), [1, 2, 4]);
    for knot in &machine.decode_knots {
        assert!((knot.ms - (20.0 + 2.0 * knot.x as f64)).abs() < 1e-9);
    }
    let range = machine.range;
    assert_eq!((range.prompt_min_tokens, range.prompt_max_tokens), (100, 400));
    assert_eq!(
        (range.context_max_tokens, range.batch_max_requests, range.total_prompt_max_tokens),
        (800, 4, 800)
    );
    assert!(report.total.prompt_mape_percent < 1e-9 && report.total.token_mape_percent < 1e-9, "{report}");
    assert_eq!(report.machines[0].rows, 6);
    assert_eq!(Profile::from_toml(&profile.to_toml(), "mine.toml").unwrap(), profile);
}

#[test]
fn fit_takes_medians_and_reports_the_mean_error() {
    let text = csv(&[
        "m,h,100,1,10,10,20,1",
        "m,h,100,1,10,11,20,1",
        "m,h,100,1,10,99,20,1",
        "m,h,200,1,10,15,20,1",
        "m,h,200,1,10,19,20,1",
        "m,h,100,2,10,40,25,1",
    ]);
    let (profile, report) = fit_text(&text, "m.csv").unwrap();
    let machine = &profile.machines()[0];
    let times: Vec<_> = machine.prompt_knots.iter().map(|knot| knot.ms).collect();
    assert_eq!(times, [11.0, 17.0], "the middle, or half-way between two");
    // Errors: 1/10, 0, 88/99 of the three; 2/15 and 2/19 of the two; 0.
    let expected = 100.0 * (0.1 + 88.0 / 99.0 + 2.0 / 15.0 + 2.0 / 19.0) / 6.0;
    assert!((report.total.prompt_mape_percent - expected).abs() < 1e-9, "{report}");
}

#[test]
fn fit_drops_an_end_that_falls_and_says_so() {
    let text = csv(&[
        "m,h,100,1,10,10,20,1",
        "m,h,200,1,10,20,20,1",
        "m,h,100,2,10,20,22,1",
        "m,h,100,64,10,640,10,1",
    ]);
    let (profile, report) = fit_text(&text, "m.csv").unwrap();
    assert_eq!(profile.machines()[0].decode_knots.last().unwrap().x, 2);
    assert_eq!(profile.machines()[0].range.batch_max_requests, 64);
    let told = report.to_string();
    assert!(told.contains("left out decode_ms_by_batch at 64"), "{told}");
    assert!(report.total.token_mape_percent < 1e-9, "its rows are not part of the fit: {told}");
}

#[test]
fn fit_keeps_decode_from_getting_faster_with_context() {
    let text = csv(&["m,h,100,1,10,10,20,1", "m,h,2000,1,10,20,19,1", "m,h,100,2,10,20,22,1"]);
    let (profile, report) = fit_text(&text, "m.csv").unwrap();
    assert_eq!(profile.machines()[0].context_ms_per_token, 0.0);
    assert!(report.machines[0].context_set_to_zero);
}

#[test]
fn columns_may_come_in_any_order_with_others_between() {
    let text = "tensor_parallel,peak_power,model,hardware,batch_size,prompt_size,token_size,token_time,prompt_time\n\
        2,?,m,\"h, with comma \"\"and\"\" quotes\",1,100,10,20,10\n\
        2,,m,\"h, with comma \"\"and\"\" quotes\",2,100,10,22,20\n\
        2,0.5,m,\"h, with comma \"\"and\"\" quotes\",1,200,10,20,20\n";
    let (profile, _) = fit_text(text, "order.csv").unwrap();
    assert_eq!(profile.machines()[0].hardware, "h, with comma \"and\" quotes");
    assert_eq!(Profile::from_toml(&profile.to_toml(), "order.toml").unwrap(), profile, "names are escaped");
}

#[test]
fn wrong_rows_name_line_and_field() {
    let good = "m,h,100,1,10,10,20,1";
    for (row, field) in [
        (",h,100,1,10,10,20,1", "model"),
        ("m, ,100,1,10,10,20,1", "hardware"),
        ("m,h,0,1,10,10,20,1", "prompt_size"),
        ("m,h,1e9,1,10,10,20,1", "prompt_size"),
        ("m,h,99999999999,1,10,10,20,1", "prompt_size"),
        ("m,h,100,-1,10,10,20,1", "batch_size"),
        ("m,h,100,1,,10,20,1", "token_size"),
        ("m,h,100,1,10,0,20,1", "prompt_time"),
        ("m,h,100,1,10,fast,20,1", "prompt_time"),
        ("m,h,100,1,10,10,NaN,1", "token_time"),
        ("m,h,100,1,10,10,inf,1", "token_time"),
        ("m,h,100,1,10,10,20,1.5", "tensor_parallel"),
        ("m,h,100,1,10,10,20", "row"),
    ] {
        let (line, name, told) = input(fit_text(&csv(&[good, row]), "rows.csv").unwrap_err());
        assert_eq!((line, name.as_str()), (3, field), "{row}: {told}");
    }
    let (line, field, _) = input(fit_text(&HEADER.replace("batch_size", "batch"), "h.csv").unwrap_err());
    assert_eq!((line, field.as_str()), (1, "batch_size"));
    let (line, field, _) = input(fit_text(&format!("{HEADER}\n"), "h.csv").unwrap_err());
    assert_eq!((line, field.as_str()), (2, "row"));
}

#[test]
fn too_little_to_fit_names_the_machine() {
    for (rows, column, why) in [
        (
            &["m,h,100,1,10,10,20,1", "m,h,200,1,10,20,20,1"][..],
            "token_time",
            "two knots in decode_ms_by_batch",
        ),
        (
            &["m,h,100,1,10,10,20,1", "m,h,100,2,10,20,20,1"],
            "prompt_time",
            "two knots in prompt_ms_by_tokens",
        ),
        (
            &["m,h,900,1,10,10,20,1", "m,h,1000,1,10,20,20,1", "m,h,900,2,10,20,20,1"],
            "prompt_time",
            "above 0 ms at 1",
        ),
    ] {
        let (line, field, told) = input(fit_text(&csv(rows), "few.csv").unwrap_err());
        assert_eq!((line, field.as_str()), (2, column), "{told}");
        assert!(told.contains(why) && told.contains("of m on h:tp1"), "{told}");
    }
}
