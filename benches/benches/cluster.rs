//! Placement by number of machines: the Cluster at both levels, and the linear scan.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use splitcore_benches::linear::Linear;
use splitcore_benches::managed::Managed;
use splitcore_benches::placing::{Books, External, Placing};

const LIVE: usize = 8192;

fn add<B: Books>(criterion: &mut Criterion, name: &str, books: fn(u32) -> B) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(1));
    for machines in [4, 64, 1024, 16_384] {
        let mut placing = Placing::new(books(machines), LIVE, 1);
        group.bench_function(BenchmarkId::from_parameter(machines), |bencher| {
            bencher.iter(|| placing.step());
        });
    }
    group.finish();
}

fn placement(criterion: &mut Criterion) {
    add(criterion, "external", External::new);
    add(criterion, "managed", Managed::new);
    add(criterion, "linear", Linear::new);
}

criterion_group!(benches, placement);
criterion_main!(benches);
