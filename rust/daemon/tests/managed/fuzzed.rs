//! What the fuzzer drives, at random and from its seeds.

use std::path::Path;

use proptest::prelude::*;
use splitcore_daemon::testing::worker_port;

fn seeds() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/worker_port");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut seeds: Vec<(String, Vec<u8>)> = files
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    seeds.sort();
    seeds
}

#[test]
fn each_seed_comes_as_far_as_it_is_meant_to() {
    let let_in: Vec<(String, usize)> =
        seeds().into_iter().map(|(name, data)| (name, worker_port(&data))).collect();
    let refused = ["claims", "earlier", "escape", "impostor", "place"];
    for (name, sessions) in let_in {
        assert_eq!(sessions > 0, !refused.contains(&name.as_str()), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_on_the_worker_port_the_honest_worker_goes_on(
        seed in proptest::sample::select(seeds()),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        more in proptest::collection::vec(prop_oneof![0..8_u8, any::<u8>()], 0..120),
    ) {
        let mut data = seed.1;
        for (at, byte) in changes {
            let at = at.index(data.len());
            data[at] = byte;
        }
        data.extend(more);
        worker_port(&data);
    }
}
