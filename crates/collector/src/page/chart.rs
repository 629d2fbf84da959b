//! The drawing of an overview: alerts by time, and below on the same axis what was lost and not watched.

use maud::{Markup, html};
use store::{LossKind, Overview};

use super::view::{number, stamp, tone};
use crate::alert::time_text;

const HOUR_NS: i64 = 3_600_000_000_000;

/// Kinds of bars from the bottom up.
const TONES: [(&str, &str); 5] = [
    ("critical", "Critical and above"),
    ("error", "Error"),
    ("warning", "Warning"),
    ("notice", "Notice, Informational"),
    ("debug", "Debug"),
];

/// Lanes below the bars: name, and the kinds of losses that they show.
const LANES: [(&str, &[LossKind]); 2] = [
    (
        "dropped",
        &[
            LossKind::DroppedEvents,
            LossKind::LostAlerts,
            LossKind::Spool,
        ],
    ),
    ("unwatched", &[LossKind::Unwatched]),
];

const HEIGHT: f64 = 100.0;

/// The interval that is drawn, in hours since 1970, and the hours of one bar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) first: i64,
    pub(super) hours: i64,
    pub(super) step: i64,
}

impl Axis {
    /// Returns the axis that ends with the current hour.
    pub(super) fn until(now_ns: i64, hours: i64) -> Self {
        let step = match hours {
            ..=24 => 1,
            25..=168 => 6,
            _ => 24,
        };
        let end = now_ns.div_euclid(HOUR_NS) + 1;
        let end = (end + step - 1).div_euclid(step) * step;
        Self {
            first: end - hours,
            hours,
            step,
        }
    }

    pub(super) fn interval_ns(self) -> (i64, i64) {
        (self.first * HOUR_NS, (self.first + self.hours) * HOUR_NS)
    }

    fn bars(self) -> usize {
        usize::try_from(self.hours / self.step).unwrap_or(0)
    }

    fn bar(self, hour: i64) -> Option<usize> {
        let at = (hour - self.first).div_euclid(self.step);
        usize::try_from(at).ok().filter(|at| *at < self.bars())
    }

    /// Returns start and end of a bar in nanoseconds.
    fn times(self, bar: usize) -> (i64, i64) {
        let from = self.first + i64::try_from(bar).unwrap_or(0) * self.step;
        (from * HOUR_NS, (from + self.step) * HOUR_NS)
    }
}

/// Returns a count as a length. Counts are far below what a float holds exactly.
#[expect(clippy::cast_precision_loss, reason = "a drawing needs no more")]
fn length(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "a drawing needs no more")]
fn place(bar: usize) -> f64 {
    bar as f64
}

/// Returns the number at the top of the scale: 1, 2 or 5 times a power of ten, at least `count`.
fn top(count: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for factor in [1, 2, 4, 5, 8] {
            let candidate = power.saturating_mul(factor);
            if candidate >= count.max(4) && candidate.is_multiple_of(2) || candidate == u64::MAX {
                return candidate;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Draws an overview.
pub(super) fn draw(overview: &Overview, axis: Axis) -> Markup {
    let mut bars = vec![[0_u64; TONES.len()]; axis.bars()];
    for row in &overview.alerts {
        let kind = TONES
            .iter()
            .position(|(name, _)| *name == tone(row.severity));
        if let (Some(bar), Some(kind)) = (axis.bar(row.hour), kind) {
            bars[bar][kind] += row.count;
        }
    }
    let highest = bars.iter().map(|bar| bar.iter().sum::<u64>()).max();
    let top = top(highest.unwrap_or(0));
    html! {
        div.chart {
            div.scale aria-hidden="true" { span { (number(top)) } span { (number(top / 2)) } span { "0" } }
            (bars_drawn(&bars, axis, top))
            @for (name, kinds) in LANES { (lane(overview, axis, (name, kinds))) }
            div.ticks aria-hidden="true" { @for tick in ticks(axis) { span { (tick) } } }
        }
        div.legend {
            @for (name, title) in TONES { span { (swatch(name)) (title) } }
            span { (swatch("loss")) "Dropped or unwatched" }
        }
    }
}

fn swatch(name: &str) -> Markup {
    html! { svg viewBox="0 0 10 10" aria-hidden="true" { rect class={ "f-" (name) } width="10" height="10" rx="3" {} } }
}

fn bars_drawn(bars: &[[u64; TONES.len()]], axis: Axis, top: u64) -> Markup {
    let width = axis.bars();
    let scale = HEIGHT / length(top);
    html! {
        svg.bars viewBox={ "0 0 " (width) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label="Alerts over time by priority" {
            line.grid x1="0" y1="0.5" x2=(width) y2="0.5" {}
            line.grid x1="0" y1=(HEIGHT / 2.0) x2=(width) y2=(HEIGHT / 2.0) {}
            @for (at, bar) in bars.iter().enumerate() { (one_bar(bar, at, axis, scale)) }
        }
    }
}

fn one_bar(bar: &[u64; TONES.len()], at: usize, axis: Axis, scale: f64) -> Markup {
    let (from, to) = axis.times(at);
    let total: u64 = bar.iter().sum();
    let query = [
        ("from", time_text(from)),
        ("to", time_text(to)),
        ("hidden", "1".to_owned()),
    ];
    let query = serde_urlencoded::to_string(query).unwrap_or_else(|_no_text| String::new());
    let mut base = HEIGHT;
    let pieces = bar.iter().zip(TONES).filter(|(count, _)| **count > 0);
    let pieces: Vec<_> = pieces
        .map(|(count, (name, _))| {
            // Even one alert among thousands is seen.
            let height = (length(*count) * scale).max(1.0);
            base -= height;
            (name, base, height)
        })
        .collect();
    html! {
        a href={ "/alerts?" (query) } {
            title { (stamp(from)) ": " (number(total)) " alerts" }
            @for (name, y, height) in pieces {
                rect class={ "f-" (name) } x=(place(at) + 0.12) y=(format!("{y:.2}")) width="0.76" height=(format!("{height:.2}")) {}
            }
            rect.hit x=(at) y="0" width="1" height=(HEIGHT) {}
        }
    }
}

/// Draws in which bars something was lost.
fn lane(overview: &Overview, axis: Axis, (name, kinds): (&str, &[LossKind])) -> Markup {
    let mut sums = vec![0_u64; axis.bars()];
    for (hour, kind, count) in &overview.losses_by_hour {
        if let Some(bar) = axis.bar(*hour).filter(|_| kinds.contains(kind)) {
            sums[bar] = sums[bar].saturating_add(*count);
        }
    }
    html! {
        div.lanename { (name) }
        svg.lane viewBox={ "0 0 " (axis.bars()) " 1" } preserveAspectRatio="none" role="img" aria-label={ "Intervals: " (name) } {
            @for (at, sum) in sums.iter().enumerate() { @if *sum > 0 {
                rect.f-loss x=(at) y="0" width="1" height="1" {
                    title { (stamp(axis.times(at).0)) ": " (number(*sum)) " " (name) }
                }
            } }
        }
    }
}

/// Returns the texts below the axis: times within a day, else days.
fn ticks(axis: Axis) -> Vec<String> {
    const TICKS: usize = 6;
    let bars = axis.bars();
    let at = (0..=TICKS).map(|tick| axis.times(bars * tick / TICKS).0);
    at.map(|time| {
        let text = stamp(time);
        match axis.step {
            1 => text.get(11..16),
            _ => text.get(5..10),
        }
        .unwrap_or_default()
        .to_owned()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{HourCount, Severity};

    #[test]
    fn the_scale_ends_at_a_round_number() {
        for (count, expected) in [
            (0, 4),
            (4, 4),
            (5, 8),
            (11, 20),
            (41, 50),
            (501, 800),
            (950, 1000),
        ] {
            assert_eq!(top(count), expected, "{count}");
        }
    }

    #[test]
    fn alerts_and_losses_stand_in_the_bar_of_their_hour() {
        let axis = Axis::until(100 * HOUR_NS + 1, 24);
        assert_eq!((axis.first, axis.bars()), (77, 24));
        let overview = Overview {
            alerts: vec![HourCount {
                hour: 100,
                severity: Severity::named("Alert").expect("a name"),
                count: 3,
            }],
            losses_by_hour: vec![(99, LossKind::Unwatched, 5), (20, LossKind::Spool, 9)],
            ..Overview::default()
        };
        let text = draw(&overview, axis).into_string();
        assert!(text.contains(": 3 alerts"), "{text}");
        assert!(
            text.contains("<rect class=\"f-critical\" x=\"23.12\""),
            "{text}"
        );
        assert!(
            text.contains(": 5 unwatched") && !text.contains("9 dropped"),
            "{text}"
        );
        assert!(!text.contains("style="));
    }

    #[test]
    fn longer_intervals_have_wider_bars() {
        assert_eq!(Axis::until(0, 168).bars(), 28);
        assert_eq!(Axis::until(0, 720).bars(), 30);
    }
}
