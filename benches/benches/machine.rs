//! Passes of one Machine by number of requests, and transfers on shared network cards.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use splitcore_benches::batching::Batching;
use splitcore_benches::flows::Flows;

fn passes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pass");
    for requests in [1, 16, 128] {
        let mut batching = Batching::new(requests, 1);
        group.throughput(Throughput::Elements(requests as u64));
        group.bench_function(BenchmarkId::from_parameter(requests), |bencher| {
            bencher.iter(|| batching.step());
        });
    }
    group.finish();
}

fn transfers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("transfer");
    for side in [4, 64, 1024] {
        let mut flows = Flows::new(side, 2 * side as usize, 1);
        group.bench_function(BenchmarkId::from_parameter(side), |bencher| {
            bencher.iter(|| flows.step());
        });
    }
    group.finish();
}

criterion_group!(benches, passes, transfers);
criterion_main!(benches);
