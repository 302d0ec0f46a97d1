//! Piece-wise linear functions through measured points.

/// One measured point of a profile: milliseconds at a size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Knot {
    /// Tokens or requests, as the list says.
    pub x: u64,
    /// Median time, all digits.
    pub ms: f64,
}

/// A line through knots that goes on beyond them by its first and last segment.
#[derive(Debug, Clone)]
pub(crate) struct PiecewiseLinear {
    segments: Box<[Segment]>,
}

/// From `x` on, `y + slope * (at - x)`; the last segment repeats the slope before it, so that every
/// knot is returned to the bit.
#[derive(Debug, Clone, Copy)]
struct Segment {
    x: f64,
    y: f64,
    slope: f64,
}

impl PiecewiseLinear {
    /// A line in units of `1 / scale` milliseconds; at least two knots, strictly increasing.
    pub(crate) fn new(knots: &[Knot], scale: f64) -> Self {
        debug_assert!(knots.len() >= 2, "one knot has no slope");
        let point = |knot: &Knot| (knot.x as f64, knot.ms * scale);
        let mut segments: Vec<Segment> = knots
            .windows(2)
            .map(|pair| {
                let ((x, y), (x_next, y_next)) = (point(&pair[0]), point(&pair[1]));
                Segment { x, y, slope: (y_next - y) / (x_next - x) }
            })
            .collect();
        if let (Some(last), Some(&Segment { slope, .. })) = (knots.last(), segments.last()) {
            let (x, y) = point(last);
            segments.push(Segment { x, y, slope });
        }
        Self { segments: segments.into_boxed_slice() }
    }

    /// Its knots.
    pub(crate) fn knots(&self) -> impl Iterator<Item = (f64, f64)> {
        self.segments.iter().map(|segment| (segment.x, segment.y))
    }

    /// The value at `x`.
    pub(crate) fn at(&self, x: f64) -> f64 {
        // Fewer than ten segments, and most queries hit the first ones: scanning beats bisecting.
        let mut segment = &self.segments[0];
        for next in &self.segments[1..] {
            if next.x > x {
                break;
            }
            segment = next;
        }
        segment.y + segment.slope * (x - segment.x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> PiecewiseLinear {
        let knots = [(2, 10.1), (4, 30.3), (7, 30.7)].map(|(x, ms)| Knot { x, ms });
        PiecewiseLinear::new(&knots, 1.0)
    }

    #[test]
    fn knots_come_back_to_the_bit() {
        let line = line();
        assert_eq!([line.at(2.0), line.at(4.0), line.at(7.0)], [10.1, 30.3, 30.7]);
    }

    #[test]
    fn between_and_beyond() {
        let close = |x: f64, y: f64| assert!((line().at(x) - y).abs() < 1e-9, "{x}: {}", line().at(x));
        close(3.0, 20.2);
        close(1.0, 0.0);
        close(5.5, 30.5);
        close(10.0, 31.1);
    }
}
