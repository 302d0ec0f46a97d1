//! Runs options given as JSON and prints the summary.
fn main() {
    let text = std::env::args().nth(1).unwrap();
    let options: splitcore_sim::Options = serde_json::from_str(&text).unwrap();
    let t = std::time::Instant::now();
    match splitcore_sim::simulate(&options, &mut |_, _| true) {
        Ok(mut report) => {
            report
                .summary
                .machines
                .truncate(std::env::var("M").ok().and_then(|m| m.parse().ok()).unwrap_or(0));
            println!("{}", serde_json::to_string_pretty(&report.summary).unwrap());
            if let Some(p) = std::env::args().nth(2) {
                splitcore_sim::report::write_requests_csv(
                    std::path::Path::new(&p),
                    &report.rows,
                    &report.machine_names,
                )
                .unwrap();
            }
        }
        Err(error) => println!("{error}"),
    }
    eprintln!("total {:?}", t.elapsed());
}
