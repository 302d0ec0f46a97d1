#![allow(warnings, missing_docs)]
use splitcore_sim::{Options, simulate};
fn stats(x: &[f64]) -> (f64, f64) {
    let m = x.iter().sum::<f64>() / x.len() as f64;
    let v = x.iter().map(|a| (a - m) * (a - m)).sum::<f64>() / x.len() as f64;
    (m, v.sqrt())
}
fn corr(a: &[f64], b: &[f64]) -> f64 {
    let (ma, sa) = stats(a);
    let (mb, sb) = stats(b);
    a.iter().zip(b).map(|(x, y)| (x - ma) * (y - mb)).sum::<f64>() / a.len() as f64 / sa / sb
}
fn trough(x: &[f64]) -> f64 {
    (1..x.len() / 3).map(|l| corr(&x[l..], &x[..x.len() - l])).fold(1.0, f64::min)
}
const DUR: f64 = 600.0;
fn main() {
    let guard: f64 = std::env::var("GUARD").map_or(1.2, |x| x.parse().unwrap());
    let WIN: f64 = std::env::var("WIN").map_or(5.0, |x| x.parse().unwrap());
    let a: Vec<String> = std::env::args().collect();
    let f = |i: usize| a[i].parse::<f64>().unwrap();
    // prompt token trace policy ttft tbt seed rates...
    for rate in &a[8..] {
        for admission in ["bounds", "early", "predicted"] {
            let o = Options {
                prompt: Some(a[1].clone()),
                token: Some(a[2].clone()),
                trace: a[3].clone(),
                policy: Some(a[4].clone()),
                admission: admission.into(),
                slo_ttft_s: Some(f(5)),
                slo_tbt_s: Some(f(6)),
                seed: f(7) as u64,
                rate: Some(rate.parse().unwrap()),
                duration_s: Some(600.0),
                kv_limit: std::env::var("NOKV").is_err(),
                ..Options::default()
            };
            let r = simulate(&o, &mut |_, _| true).unwrap();
            let t = &r.timeline;
            let n = t.t_s.iter().filter(|&&t| t < DUR).count();
            let skip = n / 6;
            // windows of 5 s
            let width = t.t_s[1] - t.t_s[0];
            let per = (WIN / width).round().max(1.0) as usize;
            let win = |x: &[f64]| {
                x[skip..n]
                    .chunks_exact(per)
                    .map(|c| c.iter().sum::<f64>() / c.len() as f64)
                    .collect::<Vec<_>>()
            };
            let p = win(&t.pools[0].1.prompt_tokens);
            let d = win(&t.pools[1].1.decodes);
            let (pm, ps) = stats(&p);
            let (dm, ds) = stats(&d);
            let s = &r.summary;
            println!(
                "{rate:>5} {admission:9} rej {:5.1}% {:?} att {:.3} ttft50/99 {:.2}/{:.2} tbt50/99 {:.3}/{:.3} P {pm:.0}±{ps:.0} ({:.2}) D {dm:.1}±{ds:.1} ({:.3}) corr {:.2} trough P {:.2} D {:.2} mixed {}",
                100.0 * s.requests.rejected as f64 / s.requests.submitted as f64,
                s.admission.rejected,
                s.admission.attainment.unwrap(),
                {
                    let mut v: Vec<f64> =
                        r.rows.iter().filter(|r| r.finished()).map(|r| r.ttft_ns as f64 / 1e9).collect();
                    v.sort_by(f64::total_cmp);
                    v[v.len() / 2]
                },
                {
                    let mut v: Vec<f64> =
                        r.rows.iter().filter(|r| r.finished()).map(|r| r.ttft_ns as f64 / 1e9).collect();
                    v.sort_by(f64::total_cmp);
                    v[v.len() * 99 / 100]
                },
                {
                    let mut v: Vec<f64> = r
                        .rows
                        .iter()
                        .filter(|r| r.finished() && r.output_tokens > 1)
                        .map(|r| (r.e2e_ns - r.ttft_ns) as f64 / 1e9 / (r.output_tokens - 1) as f64)
                        .collect();
                    v.sort_by(f64::total_cmp);
                    v[v.len() / 2]
                },
                {
                    let mut v: Vec<f64> = r
                        .rows
                        .iter()
                        .filter(|r| r.finished() && r.output_tokens > 1)
                        .map(|r| (r.e2e_ns - r.ttft_ns) as f64 / 1e9 / (r.output_tokens - 1) as f64)
                        .collect();
                    v.sort_by(f64::total_cmp);
                    v[v.len() * 99 / 100]
                },
                ps / pm,
                ds / dm,
                corr(&p, &d),
                trough(&p),
                trough(&d),
                s.pools.to_mixed
            );
        }
    }
}
