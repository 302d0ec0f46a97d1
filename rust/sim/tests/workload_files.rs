//! Trace files: what is read, and what each wrong file is told.
#![allow(clippy::unwrap_used, reason = "a test's own files")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use splitcore_sim::SimError;
use splitcore_sim::workload::{
    InvalidRows, LaterTurns, Reading, TOKENS_MAX, TraceFile, WorkloadSpec, read_trace,
};

const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
const SPLITWISE: &str =
    "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n";

/// A file of its own for each call, as tests run at the same time.
fn write(content: impl AsRef<[u8]>) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("trace-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn read_with(content: impl AsRef<[u8]>, reading: &Reading) -> Result<TraceFile, SimError> {
    let path = write(content);
    let result = read_trace(&path, reading);
    std::fs::remove_file(path).unwrap();
    result
}

fn read(content: impl AsRef<[u8]>) -> Result<TraceFile, SimError> {
    read_with(content, &Reading::default())
}

fn rows_of(file: &TraceFile) -> Vec<(u64, u32, u32)> {
    file.requests.iter().map(|r| (r.arrival_ns, r.prompt_tokens, r.output_tokens)).collect()
}

fn rows(content: impl AsRef<[u8]>) -> Vec<(u64, u32, u32)> {
    rows_of(&read(content).unwrap())
}

/// Asserts an input error, and that it names the file.
#[track_caller]
fn assert_input_error(content: impl AsRef<[u8]>, line: u64, field: &str, expected: &str, got: &str) {
    match read(content).unwrap_err() {
        SimError::Input { file, line: at, field: of, expected: wanted, got: found } => {
            assert!(file.contains("trace-"), "{file}");
            assert_eq!((at, of.as_str(), found.as_str()), (line, field, got));
            assert!(wanted.contains(expected), "{wanted:?} does not say {expected:?}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn azure_dates_are_exact_and_start_at_zero() {
    let content = format!(
        "{AZURE}2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n\
         2023-11-17T00:00:00Z,1,2\n2023-11-17 00:00:00.000000001+00:00,3,4"
    );
    let midnight_ns = 20_576_020_040_000;
    assert_eq!(
        rows(content),
        [(0, 4808, 10), (52_000_000, 3180, 8), (midnight_ns, 1, 2), (midnight_ns + 1, 3, 4)]
    );
}

#[test]
fn azure_dates_with_another_zone_are_converted() {
    let content = format!("{AZURE}2024-02-28T23:30:00Z,1,1\n2024-02-29T02:00:00+02:00,2,2\n");
    assert_eq!(rows(content), [(0, 1, 1), (1_800_000_000_000, 2, 2)]);
}

#[test]
fn azure_dates_cross_a_leap_day() {
    let content = format!("{AZURE}2024-02-28 00:00:00,1,1\n2024-03-01 00:00:00,2,2\n");
    assert_eq!(rows(content)[1].0, 2 * 86_400 * 1_000_000_000);
}

#[test]
fn every_format_begins_with_its_first_row() {
    let content = format!("{SPLITWISE}0,2,0,3400,1,4096,32\n1,2,0,3400.0000000014,1,2048,8\n");
    assert_eq!(rows(content), [(0, 4096, 32), (1, 2048, 8)]);
    let epoch = "{\"timestamp\": 1700000000001, \"input_length\": 1, \"output_length\": 2}\n\
                 {\"timestamp\": 1700000000003, \"input_length\": 3, \"output_length\": 4}";
    assert_eq!(rows(epoch), [(0, 1, 2), (2_000_000, 3, 4)], "exact at any size");
    assert_eq!(
        rows("Timestamp,Request tokens,Response tokens\n45,7,8\n118,9,10"),
        [(0, 7, 8), (73_000_000_000, 9, 10)]
    );
    let vidur = "arrived_at,num_prefill_tokens,num_decode_tokens\n100.5,7,8\n101,9,10";
    assert_eq!(rows(vidur), [(0, 7, 8), (500_000_000, 9, 10)]);
    let vllm = r#"{"input_lens": [7, 9], "output_lens": [8, 10], "start_times": [5000.25, 5000.75]}"#;
    assert_eq!(rows(vllm), [(0, 7, 8), (500_000_000, 9, 10)]);
}

#[test]
fn splitwise_sim_may_have_more_columns_in_any_order() {
    let content = "note,token_size,prompt_size,batch_size,arrival_timestamp\nx,3,2,1,0.5\n";
    assert_eq!(rows(content), [(0, 2, 3)]);
}

#[test]
fn mooncake_has_milliseconds_and_parts_of_them() {
    let content = "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, 47]}\n\
                   {\"output_length\": 1, \"input_length\": 2, \"timestamp\": 27482.5}";
    assert_eq!(rows(content), [(0, 6955, 52), (500_000, 2, 1)]);
}

#[test]
fn equal_times_are_allowed() {
    assert_eq!(rows(format!("{SPLITWISE}0,2,0,1,1,5,6\n1,2,0,1,1,7,8\n")).len(), 2);
}

#[test]
fn byte_order_mark_carriage_returns_and_blank_lines_are_allowed() {
    let plain = format!("{AZURE}2023-11-16 18:17:03,7,8\n2023-11-16 18:17:04,9,10\n");
    let dressed = format!("\u{feff}{}\r\n\r\n", plain.trim_end().replace('\n', "\r\n"));
    assert_eq!(rows(dressed), rows(plain));
    let json = "\u{feff}{\"timestamp\":0,\"input_length\":7,\"output_length\":8}\r\n\r\n";
    assert_eq!(rows(json), [(0, 7, 8)]);
}

#[test]
fn the_name_of_a_file_does_not_matter() {
    let path = write(r#"{"timestamp":0,"input_length":7,"output_length":8}"#);
    let renamed = path.with_extension("csv");
    std::fs::rename(path, &renamed).unwrap();
    assert_eq!(read_trace(&renamed, &Reading::default()).unwrap().requests.len(), 1);
    std::fs::remove_file(renamed).unwrap();
}

#[test]
fn a_missing_file_is_an_io_error_that_lists_the_built_ins() {
    let error = read_trace(&PathBuf::from("azure-cod"), &Reading::default()).unwrap_err();
    assert!(matches!(error, SimError::Io { .. }));
    assert!(error.to_string().contains("azure-conv and azure-code"), "{error}");
}

#[test]
fn a_folder_is_an_io_error() {
    let error = read_trace(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")), &Reading::default()).unwrap_err();
    assert!(matches!(error, SimError::Io { .. }), "{error}");
}

#[test]
fn an_empty_file_is_refused() {
    assert_input_error("", 1, "file", "at least one request", "none");
    assert_input_error("\u{feff}", 1, "file", "at least one request", "none");
    assert_input_error("\n \n", 1, "file", "at least one request", "none");
}

#[test]
fn a_header_alone_is_refused() {
    assert_input_error(AZURE, 1, "file", "at least one request", "none");
    assert_input_error(SPLITWISE.trim_end(), 1, "file", "at least one request", "none");
}

#[test]
fn unknown_content_is_told_the_formats() {
    for (content, got) in [
        ("a,b,c\n1,2,3\n", "\"a,b,c\""),
        ("[1,2]\n", "\"JSON of another kind\""),
        ("{\n  \"prompt\": \"hello\"\n}\n", "\"JSON of another kind\""),
        ("{\"prompt\": \"hello\"}\n", "\"{\\\"prompt\\\": \\\"hello\\\"}\""),
    ] {
        for format in
            ["TIMESTAMP,ContextTokens", "arrival_timestamp,batch_size", "timestamp,input_length", "ShareGPT"]
        {
            assert_input_error(content, 1, "format", format, got);
        }
    }
}

#[test]
fn binary_content_is_refused_as_unknown() {
    let error = read(b"\x1f\x8b\x08\x00\xff\xfe\n\x00").unwrap_err();
    assert!(error.to_string().contains("Mooncake"), "{error}");
}

#[test]
fn other_bytes_than_utf8_in_a_row_are_refused() {
    let content = [AZURE.as_bytes(), b"2023-11-16 18:17:03,7,8\n\xff,7,8\n"].concat();
    assert_input_error(content, 3, "row", "UTF-8", "other bytes");
    assert_input_error(
        b"{\"timestamp\":\xff}",
        1,
        "row",
        "one JSON object",
        "\"{\\\"timestamp\\\":\u{fffd}}\"",
    );
}

#[test]
fn a_missing_column_is_named() {
    let got = "\"TIMESTAMP,ContextTokens\"";
    assert_input_error("TIMESTAMP,ContextTokens\n", 1, "GeneratedTokens", "a column of this name", got);
    let got = "\"arrival_timestamp,prompt_size,token_size\"";
    let content = "arrival_timestamp,prompt_size,token_size\n0,1,1\n";
    assert_input_error(content, 1, "batch_size", "a column of this name", got);
}

#[test]
fn a_short_or_long_row_is_refused() {
    let start = format!("{AZURE}2023-11-16 18:17:03,7,8\n");
    assert_input_error(
        format!("{start}2023-11-16 18:17:04,7"),
        3,
        "GeneratedTokens",
        "3 columns",
        "2 columns",
    );
    assert_input_error(format!("{start}2023-11-16 18:17:04,1,234,8"), 3, "row", "3 columns", "4 columns");
}

#[test]
fn a_line_number_counts_blank_lines() {
    let content = format!("\n{AZURE}\n2023-11-16 18:17:03,7,8\n\n2023-11-16 18:17:03,0,8\n");
    assert_input_error(&content, 6, "ContextTokens", "a whole number", "\"0\"");
    assert_input_error(content.replace('\n', "\r\n"), 6, "ContextTokens", "a whole number", "\"0\"");
    let content = "\n{\"timestamp\":0,\"input_length\":7,\"output_length\":8}\n\n{\"timestamp\":0}\n";
    assert_input_error(content, 4, "input_length", "a whole number", "nothing");
}

#[test]
fn tokens_must_be_whole_and_in_range() {
    for (text, got) in [
        ("0", "\"0\""),
        ("-3", "\"-3\""),
        ("12.5", "\"12.5\""),
        ("abc", "\"abc\""),
        ("", "nothing"),
        ("NaN", "\"NaN\""),
        ("2147483649", "\"2147483649\""),
        ("4294967296", "\"4294967296\""),
        ("99999999999999999999", "\"99999999999999999999\""),
    ] {
        let wanted = "a whole number of tokens from 1 to 2147483648";
        let date = "2023-11-16 18:17:03";
        assert_input_error(format!("{AZURE}{date},{text},8\n"), 2, "ContextTokens", wanted, got);
        assert_input_error(format!("{AZURE}{date},8,{text}\n"), 2, "GeneratedTokens", wanted, got);
        assert_input_error(format!("{SPLITWISE}0,2,0,1,1,{text},6\n"), 2, "prompt_size", wanted, got);
        assert_input_error(format!("{SPLITWISE}0,2,0,1,1,6,{text}\n"), 2, "token_size", wanted, got);
    }
}

#[test]
fn mooncake_lengths_must_be_whole_and_in_range() {
    for (text, got) in [
        ("0", "\"0\""),
        ("-3", "\"-3\""),
        ("12.5", "\"12.5\""),
        ("null", "nothing"),
        ("\"7\"", "\"\\\"7\\\"\""),
        ("[7]", "\"[7]\""),
        ("2147483649", "\"2147483649\""),
    ] {
        let json = |input: &str, output: &str| {
            format!("{{\"timestamp\": 0, \"input_length\": {input}, \"output_length\": {output}}}")
        };
        assert_input_error(json(text, "1"), 1, "input_length", "a whole number of tokens", got);
        assert_input_error(json("1", text), 1, "output_length", "a whole number of tokens", got);
    }
}

#[test]
fn the_largest_length_is_accepted() {
    assert_eq!(rows(format!("{SPLITWISE}0,2,0,1,1,{TOKENS_MAX},1\n"))[0].1, 1 << 31);
}

#[test]
fn dates_must_be_dates() {
    for date in
        ["yesterday", "2023-13-01 00:00:00", "2023-02-29 00:00:00", "2023-11-16 25:00:00", "1700000000"]
    {
        let content = format!("{AZURE}{date},7,8\n");
        assert_input_error(content, 2, "TIMESTAMP", "2023-11-16 18:17:03.9799600", &format!("\"{date}\""));
    }
    assert_input_error(format!("{AZURE},7,8\n"), 2, "TIMESTAMP", "a date", "nothing");
}

#[test]
fn seconds_must_be_numbers_from_zero() {
    for text in ["-0.5", "nan", "inf", "soon"] {
        let content = format!("{SPLITWISE}0,2,0,{text},1,5,6\n");
        assert_input_error(content, 2, "arrival_timestamp", "seconds, 0 or more", &format!("\"{text}\""));
    }
}

#[test]
fn milliseconds_must_be_numbers_from_zero() {
    let json = |time: &str| format!("{{{time}\"input_length\": 1, \"output_length\": 1}}");
    for (text, got) in [("-1", "\"-1\""), ("true", "\"true\""), ("\"1\"", "\"\\\"1\\\"\"")] {
        let content = json(&format!("\"timestamp\": {text}, "));
        assert_input_error(content, 1, "timestamp", "milliseconds, 0 or more", got);
    }
}

#[test]
fn a_time_beyond_146_years_is_refused() {
    let content = format!("{SPLITWISE}0,2,0,1e300,1,5,6\n");
    assert_input_error(content, 2, "arrival_timestamp", "within 146 years", "\"1e300\"");
    let content = r#"{"timestamp": 18446744073709551615, "input_length": 1, "output_length": 1}"#;
    assert_input_error(content, 1, "timestamp", "within 146 years", "\"18446744073709551615\"");
}

#[test]
fn times_out_of_order_are_sorted_with_a_note() {
    let content =
        format!("{AZURE}2023-11-16 18:17:03,7,8\n2023-11-16 18:17:02.999,9,10\n2023-11-16 18:17:03,11,12\n");
    let read = read(content).unwrap();
    assert_eq!(
        rows_of(&read),
        [(0, 9, 10), (1_000_000, 7, 8), (1_000_000, 11, 12)],
        "equal times keep their order"
    );
    let [note] = &read.notes[..] else { panic!("{:?}", read.notes) };
    assert!(note.ends_with("1 rows are earlier than one before them, by 0.001 s at most; sorted"), "{note}");
    let content = "{\"timestamp\":20,\"input_length\":7,\"output_length\":8}\n\
                   {\"timestamp\":10,\"input_length\":9,\"output_length\":10}\n";
    assert_eq!(rows(content), [(0, 9, 10), (10_000_000, 7, 8)]);
}

#[test]
fn whole_lengths_may_be_written_with_a_point() {
    assert_eq!(rows(format!("{AZURE}2023-11-16 18:17:03,100.0,2e1\n")), [(0, 100, 20)]);
    assert_eq!(rows(r#"{"timestamp": 1, "input_length": 100.0, "output_length": 20}"#), [(0, 100, 20)]);
    for text in ["100.5", "1e10", "-0.0", "1e-1", "inf"] {
        assert_input_error(
            format!("{AZURE}2023-11-16 18:17:03,{text},1"),
            2,
            "ContextTokens",
            "a whole",
            &format!("{text:?}"),
        );
    }
}

#[test]
fn rows_that_are_no_requests_are_skipped_only_where_asked() {
    let skip = Reading { invalid_rows: InvalidRows::Skip, ..Reading::default() };
    let burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                 5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n\
                 118,GPT-4,417,276,693,API log\n";
    let azure = format!(
        "{AZURE}2023-11-16 18:17:03,7,8\nyesterday,7,8\n2023-11-16 18:17:04,7\n2023-11-16 18:17:05,9,0"
    );
    let jsonl = "{\"timestamp\":0,\"input_length\":7,\"output_length\":8}\nnonsense\n{\"timestamp\":1}\n\
                 {\"timestamp\":2,\"input_length\":7,\"output_length\":0}";
    let vllm = r#"{"input_lens": [7, 0, 9], "output_lens": [8, 5, 0]}"#;
    for (content, left, of, first, line, field) in [
        (burst, 1, 3, 472, 3, "Response tokens"),
        (&azure, 3, 4, 7, 3, "TIMESTAMP"),
        (jsonl, 3, 4, 7, 2, "row"),
        (vllm, 2, 3, 7, 1, "input_lens[1]"),
    ] {
        let error = read(content).unwrap_err();
        assert!(error.to_string().contains("--invalid-rows skip leaves such rows out"), "{error}");
        assert!(error.to_string().contains(&format!(":{line}: {field}: ")), "{error}");
        let read = read_with(content, &skip).unwrap();
        assert_eq!((read.requests.len(), read.requests[0].prompt_tokens), (of - left, first));
        let note = &read.notes[0];
        let told =
            format!("{left} of {of} rows are no requests and left out, the first in line {line}: {field}: ");
        assert!(note.contains(&told), "{note}");
    }
    let none = read_with(format!("{AZURE}yesterday,1,1\n"), &skip).unwrap_err().to_string();
    assert!(none.contains("at least one request, got none (line 2: TIMESTAMP"), "{none}");
    assert!(read_with("a,b\n1,2\n", &skip).unwrap_err().to_string().contains("Vidur"), "a header is no row");
    assert!(read_with("{\"a\":1}\n", &skip).unwrap_err().to_string().contains("Vidur"));
}

#[test]
fn answers_without_a_length_need_an_option() {
    let content =
        "{\"timestamp\":0,\"input_length\":7}\n{\"timestamp\":1,\"input_length\":9,\"output_length\":3}";
    assert_input_error(content, 1, "output_length", "--missing-output", "nothing");
    let read = read_with(content, &Reading { missing_output: Some(64), ..Reading::default() }).unwrap();
    assert_eq!(rows_of(&read), [(0, 7, 64), (1_000_000, 9, 3)]);
    assert!(read.notes[0].contains("1 answers have the length"), "{:?}", read.notes);
    let zero = "{\"timestamp\":0,\"input_length\":7,\"output_length\":0}";
    let given = Reading { missing_output: Some(64), ..Reading::default() };
    assert!(read_with(zero, &given).is_err(), "0 is a length");
}

#[test]
fn later_turns_of_a_session_need_an_option() {
    let content = "{\"session_id\":\"a\",\"timestamp\":100,\"input_length\":7,\"output_length\":8}\n\
                   {\"session_id\":\"b\",\"timestamp\":200,\"input_length\":1,\"output_length\":1}\n\
                   {\"session_id\":\"a\",\"delay\":500,\"input_length\":9,\"output_length\":10}\n\
                   {\"session_id\":\"a\",\"delay\":0.5,\"input_length\":11,\"output_length\":12}\n";
    assert_input_error(content, 3, "timestamp", "--later-turns after-arrival", "a delay");
    let after = Reading { later_turns: LaterTurns::AfterArrival, ..Reading::default() };
    let read = read_with(content, &after).unwrap();
    let expected = [(0, 7, 8), (100_000_000, 1, 1), (500_000_000, 9, 10), (500_500_000, 11, 12)];
    assert_eq!(rows_of(&read), expected);
    assert!(
        read.notes[0].contains("2 later turns") && read.notes[0].contains("not simulated"),
        "{:?}",
        read.notes
    );
    let orphan = "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n\
                  {\"session_id\":\"a\",\"delay\":5,\"input_length\":9,\"output_length\":10}\n";
    let told = read_with(orphan, &after).unwrap_err().to_string();
    assert!(told.contains(":2: delay: expected a turn before it in its session"), "{told}");
}

#[test]
fn a_file_without_times_needs_generated_arrivals() {
    for content in [
        r#"{"input_lens": [7, 9], "output_lens": [8, 10]}"#,
        "{\n  \"output_lens\": [8, 10],\n  \"input_lens\": [7, 9]\n}\n",
        "num_prefill_tokens,num_decode_tokens\n7,8\n9,10\n",
        "{\"input_length\":7,\"output_length\":8}\n{\"input_length\":9,\"output_length\":10}\n",
    ] {
        let file = read(content).unwrap();
        assert_eq!((rows_of(&file), file.has_times), (vec![(0, 7, 8), (0, 9, 10)], false));
        let path = write(content);
        let spec =
            WorkloadSpec { source: path.as_path().to_str().unwrap().into(), ..WorkloadSpec::default() };
        let told = spec.build().unwrap_err().to_string();
        assert!(told.starts_with("arrivals: expected poisson or bursty beside a rate, as trace-"), "{told}");
        let drawn = WorkloadSpec { arrivals: "poisson".parse().ok(), rate_rps: Some(2.0), ..spec };
        assert!(
            drawn.build().unwrap().requests.iter().all(|request| [7, 9].contains(&request.prompt_tokens))
        );
        std::fs::remove_file(path).unwrap();
    }
    let mixed = "{\"timestamp\":0,\"input_length\":7,\"output_length\":8}\n{\"input_length\":9,\"output_length\":10}\n";
    assert_input_error(mixed, 2, "timestamp", "a time, as in the first row", "nothing");
    let uneven = r#"{"input_lens": [7, 9], "output_lens": [8]}"#;
    assert_input_error(uneven, 1, "output_lens", "as many as input_lens, 2", "1");
}

/// A tokenizer whose tokens are words.
const WORDS: &str = r#"{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}"#;

#[test]
fn conversations_are_counted_by_a_tokenizer() {
    let content = r#"[
        {"id": "a", "conversations": [{"from": "human", "value": "one two three"}, {"from": "gpt", "value": "four five"}]},
        {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
        {"id": "c", "conversations": [{"from": "human", "value": "six"}, {"from": "gpt", "value": "seven"},
                                      {"from": "human", "value": "eight"}]}
    ]"#;
    assert_input_error(content, 1, "conversations", "--tokenizer FILE.json", "texts");
    let tokenizer = write(WORDS);
    let reading = Reading { tokenizer: Some(tokenizer.to_str().unwrap().into()), ..Reading::default() };
    let told = read_with(content, &reading).unwrap_err().to_string();
    assert!(told.contains("[1].conversations: expected a question and its answer"), "{told}");
    let read = read_with(content, &Reading { invalid_rows: InvalidRows::Skip, ..reading.clone() }).unwrap();
    assert_eq!((rows_of(&read), read.has_times), (vec![(0, 3, 2), (0, 1, 1)], false));
    assert!(read.notes.iter().any(|note| note.contains("first question and answer")), "{:?}", read.notes);
    std::fs::write(&tokenizer, "{}").unwrap();
    let told = read_with(content, &reading).unwrap_err().to_string();
    assert!(told.contains("expected the tokenizer.json of a model"), "{told}");
    std::fs::remove_file(tokenizer).unwrap();
}

#[test]
fn what_may_never_end_is_refused() {
    for path in ["/dev/zero", "/dev/null"] {
        let told = read_trace(path.as_ref(), &Reading::default()).unwrap_err().to_string();
        assert!(told.contains("expected an ordinary file, got a device or a pipe"), "{told}");
    }
}

#[test]
fn a_part_of_a_stretched_file_tells_its_own_rate() {
    let rows = ["0", "1", "2", "10"].map(|at| format!("0,2,0,{at},1,5,6\n")).concat();
    let path = write(format!("{SPLITWISE}{rows}"));
    let spec = WorkloadSpec {
        source: path.to_str().unwrap().into(),
        rate_rps: Some(0.3),
        duration_s: Some(5.0),
        ..WorkloadSpec::default()
    };
    let workload = spec.build().unwrap();
    assert_eq!(workload.requests.len(), 3);
    let [note] = &workload.notes[..] else { panic!("{:?}", workload.notes) };
    assert!(
        note.ends_with(
            "the whole of 4 requests is stretched to 0.3/s; the first 3, which run, come at 1.000/s"
        ),
        "{note}"
    );
    assert_eq!(WorkloadSpec { duration_s: None, ..spec }.build().unwrap().notes, Vec::<String>::new());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_batch_of_several_is_refused() {
    assert_input_error(format!("{SPLITWISE}0,2,0,1,4,5,6\n"), 2, "batch_size", "1", "\"4\"");
}

#[test]
fn a_line_that_is_no_json_object_is_refused() {
    let start = "{\"timestamp\":0,\"input_length\":7,\"output_length\":8}\n";
    assert_input_error(format!("{start}[0, 7, 8]\n"), 2, "row", "one JSON object", "\"[0, 7, 8]\"");
    assert_input_error(
        format!("{start}{{\"timestamp\":"),
        2,
        "row",
        "one JSON object",
        "\"{\\\"timestamp\\\":\"",
    );
}

#[test]
fn an_error_shows_a_long_text_cut() {
    let error = read("x".repeat(10_000)).unwrap_err().to_string();
    assert!(error.ends_with("xxx\"...") && error.len() < 700, "{error}");
}

/// Requests in order, with times of whole microseconds (what the three formats can all say).
fn requests() -> impl Strategy<Value = Vec<(u64, u32, u32)>> {
    let row = (0..5_000_000_u64, 1..=TOKENS_MAX, 1..=TOKENS_MAX);
    prop::collection::vec(row, 1..40).prop_map(|rows| {
        let mut time_us = 0;
        let step = |(gap_us, prompt, output)| {
            time_us += gap_us;
            (time_us * 1000, prompt, output)
        };
        rows.into_iter().map(step).collect()
    })
}

/// As the reader gives them: times from the first.
fn from_first(requests: &[(u64, u32, u32)]) -> Vec<(u64, u32, u32)> {
    requests.iter().map(|&(ns, prompt, output)| (ns - requests[0].0, prompt, output)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

    #[test]
    fn an_azure_file_round_trips(requests in requests(), end in prop::sample::select(vec!["\n", "\r\n"])) {
        let line = |(ns, prompt, output): &(u64, u32, u32)| {
            let (minutes, seconds, part) = (ns / 60_000_000_000, ns / 1_000_000_000 % 60, ns % 1_000_000_000);
            format!("{end}2023-12-31 23:{minutes:02}:{seconds:02}.{part:09},{prompt},{output}")
        };
        let content = AZURE.trim_end().to_owned() + &requests.iter().map(line).collect::<String>();
        prop_assert_eq!(rows(content), from_first(&requests));
    }

    /// Whatever the order of the rows: the requests by time, the first at 0.
    #[test]
    fn a_shuffled_file_is_the_sorted_one(requests in requests(), order in any::<u64>()) {
        let key = |at: usize| (at as u64 + 1).wrapping_mul(order | 1);
        let mut shuffled: Vec<_> = requests.iter().enumerate().collect();
        shuffled.sort_by_key(|&(at, _)| key(at));
        let line = |&(_, (ns, prompt, output)): &(usize, &(u64, u32, u32))| {
            format!("0,2,0,{},1,{prompt},{output}\n", *ns as f64 / 1e9)
        };
        let read = rows(SPLITWISE.to_owned() + &shuffled.iter().map(line).collect::<String>());
        let times = |rows: &[(u64, u32, u32)]| rows.iter().map(|row| row.0).collect::<Vec<_>>();
        let (mut found, mut expected) = (read.clone(), from_first(&requests));
        prop_assert_eq!(times(&found), times(&expected));
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_splitwise_sim_file_round_trips(requests in requests()) {
        let line = |(ns, prompt, output): &(u64, u32, u32)| {
            format!("0,2,0,{},1,{prompt},{output}\n", *ns as f64 / 1e9)
        };
        let content = SPLITWISE.to_owned() + &requests.iter().map(line).collect::<String>();
        prop_assert_eq!(rows(content), from_first(&requests));
    }

    #[test]
    fn a_mooncake_file_round_trips(requests in requests()) {
        let line = |(ns, prompt, output): &(u64, u32, u32)| {
            let ms = *ns as f64 / 1e6;
            format!(r#"{{"timestamp": {ms}, "input_length": {prompt}, "output_length": {output}, "hash_ids": [1]}}"#)
        };
        let content = requests.iter().map(line).collect::<Vec<_>>().join("\n");
        prop_assert_eq!(rows(content), from_first(&requests));
    }

    #[test]
    fn no_content_panics(content in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&content);
        let _ = read([AZURE.as_bytes(), &content].concat());
        let _ = read([b"{", &content[..]].concat());
        let _ = read([b"[{", &content[..]].concat());
    }
}
