//! A Cluster hears whatever the bytes say, until there are none left.

#![no_main]

#[path = "../../tests/kit/hostile.rs"]
mod hostile;

use hostile::Draws;
use libfuzzer_sys::fuzz_target;
use splitcore_core::cluster::Cluster;

fuzz_target!(|bytes: &[u8]| {
    let mut draws = Draws::new(bytes, 0);
    let Ok(mut cluster) = Cluster::new(hostile::config(&mut draws)) else { return };
    let mut now = 0;
    while !draws.is_empty() {
        now += draws.below(25);
        let event = hostile::event(&cluster, &mut draws);
        hostile::apply(&mut cluster, now, &event);
    }
});
