//! Mapping of numbers to positions on an axis.

/// A range of numbers, mapped to 0 to 100 per cent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
}

/// Ratio of largest to smallest value above which a scale is logarithmic.
const WIDE: f64 = 12.0;

impl Scale {
    /// Creates a logarithmic scale that holds all positive `values` with a little room.
    pub(crate) fn logarithmic(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values.filter(|value| *value > 0.0)).unwrap_or((0.5, 2.0));
        let room = (high / low).powf(0.04).max(1.02);
        Self {
            low: low / room,
            high: high * room,
            is_logarithmic: true,
        }
    }

    /// Creates a scale that holds all `values`: from 0 if that costs little room, logarithmic if they lie far
    /// apart.
    pub(crate) fn fitting(values: impl Iterator<Item = f64> + Clone) -> Self {
        let Some((low, high)) = ends(values.clone()) else {
            return Self {
                low: 0.0,
                high: 1.0,
                is_logarithmic: false,
            };
        };
        // If all values are zero, the scale ends at an arbitrary 1.
        let high = if low == 0.0 && high == 0.0 { 1.0 } else { high };
        if low > 0.0 && high / low > WIDE {
            return Self::logarithmic(values);
        }
        let low = if low >= 0.0 && low < high / 3.0 {
            0.0
        } else {
            low
        };
        let room = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-12);
        Self {
            low: if low == 0.0 { 0.0 } else { low - room },
            high: high + room,
            is_logarithmic: false,
        }
    }

    /// Returns the position of `value` in per cent; values outside are put at the edge.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let share = if self.is_logarithmic {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        (share * 100.0).clamp(0.0, 100.0)
    }

    /// Returns round numbers within the scale: at least one and at most `most`.
    pub(crate) fn ticks(&self, most: usize) -> Vec<f64> {
        let steps: &[&[f64]] = &[
            &[1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 7.0],
            &[1.0, 2.0, 5.0],
            &[1.0, 3.0],
            &[1.0],
        ];
        if !self.is_logarithmic {
            return self.even_ticks(most);
        }
        let inside = |digits: &[f64], every: i32| -> Vec<f64> {
            (-12..=15)
                .filter(|power| power % every == 0)
                .flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)))
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect()
        };
        (steps.iter().map(|digits| (*digits, 1)))
            .chain([2, 3, 6].map(|every| (steps[3], every)))
            .map(|(digits, every)| inside(digits, every))
            .find(|ticks| ticks.len() <= most && !ticks.is_empty())
            .unwrap_or_else(|| vec![(self.low * self.high).sqrt()])
    }

    fn even_ticks(&self, most: usize) -> Vec<f64> {
        let rough = (self.high - self.low) / most.max(1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|digit| digit * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let first = (self.low / step).ceil();
        (0..=most)
            .map(|n| (first + n as f64) * step)
            .filter(|tick| *tick <= self.high)
            .collect()
    }
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values
        .filter(|value| value.is_finite())
        .map(|value| (value, value))
        .reduce(|(low, high), (value, _)| (low.min(value), high.max(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_within_and_in_order() {
        let scale = Scale::logarithmic([0.9, 1.0, 30.0].into_iter());
        let places = [0.9, 1.0, 30.0].map(|value| scale.place(value));
        assert!(
            places.is_sorted() && places[0] > 0.0 && places[2] < 100.0,
            "{places:?}"
        );
        assert!(scale.place(-1.0) >= 0.0);
        assert!(scale.place(1e9) <= 100.0);
    }

    #[test]
    fn ticks_are_few_and_round() {
        for (low, high) in [(0.99, 1.01), (0.5, 2.0), (0.9, 900.0), (1e-3, 1e9)] {
            let ticks = Scale::logarithmic([low, high].into_iter()).ticks(6);
            assert!((1..=6).contains(&ticks.len()), "{low} {high} {ticks:?}");
        }
        let ticks = Scale::fitting([0.0, 10.0].into_iter()).ticks(5);
        assert_eq!(ticks, [0.0, 5.0, 10.0]);
    }

    #[test]
    fn near_values_do_not_start_at_zero_and_far_ones_are_logarithmic() {
        let near = Scale::fitting([100.0, 101.0].into_iter());
        assert!(near.place(100.0) < 20.0 && near.place(101.0) > 80.0);
        let far = Scale::fitting([1.0, 10_000.0].into_iter());
        assert!((far.place(100.0) - 50.0).abs() < 1.0);
        assert_eq!(Scale::fitting(std::iter::empty()).place(0.5), 50.0);
        let zeros = Scale::fitting([0.0, 0.0].into_iter());
        assert_eq!(zeros.place(0.0), 0.0);
        assert!(
            zeros.ticks(5).iter().any(|tick| *tick >= 0.2),
            "ticks differ"
        );
        let single = Scale::fitting([7.0].into_iter()).place(7.0);
        assert!((0.0..=100.0).contains(&single));
    }
}
