#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    splitcore_transport::testing::fuzz::stream(data);
});
