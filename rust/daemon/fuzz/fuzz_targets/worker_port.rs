#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    splitcore_daemon::testing::worker_port(data);
});
