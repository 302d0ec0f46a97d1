//! Every cell of the failure table (`docs/failures.md`): a leg in each legal state meets each failure that it can meet.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

mod cancel;
mod drain;
#[path = "../../../swarm/src/failures.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "a module of another crate, made into a document there"
)]
mod failures;
mod histories;
mod machine_lost;
mod paused;
mod peer_lost;
mod peer_reset;
mod restart;
mod rig;
mod scenes;
mod session;
mod strike;
mod transfer;

#[test]
fn every_cell_names_a_test_that_is_there() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/failures");
    for state in failures::legal() {
        for failure in failures::Failure::ALL {
            let failures::Cell::Handled(row) = failures::cell(state, failure) else { continue };
            let (file, function) = row.test.split_once("::").unwrap();
            let text = std::fs::read_to_string(tests.join(format!("{file}.rs"))).unwrap();
            assert!(text.contains(&format!("#[test]\nfn {function}() {{")), "{}", row.test);
            // It runs on the cells that name it.
            assert!(text.contains(&format!("\"{}\"", row.test)), "{} asks for other cells", row.test);
        }
    }
}
