//! Makes the built-in workload tables from the Azure traces:
//! `cargo run -p splitcore-sim --example make_tables -- FOLDER_OF_TRACES FOLDER_OF_TABLES`.

use std::path::Path;

use splitcore_sim::workload::{Reading, SizeTable, read_trace};

const NOTE: &str = "\
# Quantiles of the lengths in FILE of Azure/AzurePublicDataset, licence CC-BY.
# Attribution: Patel et al., \"Splitwise: Efficient generative LLM inference using phase splitting\", ISCA 2024.
# `prompt` and `output`: tokens at 0..99 % by 1, 99.1..99.9 by 0.1, 99.95, 99.99 and 100.
# `bin`: output tokens of each twentieth of the rows by prompt, at 0..95 % by 1, then by 0.25.
# Made by rust/sim/examples/make_tables.rs.
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folders: Vec<String> = std::env::args().skip(1).collect();
    let [traces, tables] = folders.as_slice() else {
        return Err("expected two arguments: the folder of the traces, the folder of the tables".into());
    };
    for (name, file) in [
        ("azure-conv.txt", "AzureLLMInferenceTrace_conv.csv"),
        ("azure-code.txt", "AzureLLMInferenceTrace_code.csv"),
    ] {
        let trace = read_trace(&Path::new(traces).join(file), &Reading::default())?.requests;
        let rows: Vec<(u32, u32)> = trace.iter().map(|r| (r.prompt_tokens, r.output_tokens)).collect();
        let text = NOTE.replace("FILE", file) + &SizeTable::from_rows(&rows)?.to_text();
        std::fs::write(Path::new(tables).join(name), text)?;
    }
    Ok(())
}
