//! Plot of alerts per second over actions per second: a straight line until the detector loses alerts.

use std::fmt::Write as _;

use super::cgroup::Limits;
use super::meter::float;
use super::round::Round;
use super::table;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
const MARGIN: f64 = 60.0;

/// Colours for colour-blind readers (Okabe and Ito).
const COLOURS: [&str; 6] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
];

/// Both axes are logarithmic: rates double from round to round.
struct Axes {
    low: f64,
    high: f64,
}

impl Axes {
    fn new(series: &[(Limits, Vec<Round>)]) -> Self {
        let rates = series
            .iter()
            .flat_map(|(_, rounds)| rounds)
            .flat_map(|round| [round.eps(), received(round)]);
        let rates: Vec<f64> = rates.filter(|rate| *rate > 0.0).collect();
        let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let high = rates.iter().copied().fold(0.0, f64::max);
        if !low.is_finite() {
            return Self {
                low: 1.0,
                high: 10.0,
            };
        }
        let decade = |rate: f64, up: bool| {
            let power = rate.log10();
            10_f64.powf(if up { power.ceil() } else { power.floor() })
        };
        let (low, high) = (decade(low, false), decade(high, true));
        Self {
            low,
            high: high.max(low * 10.0),
        }
    }

    fn share(&self, rate: f64) -> f64 {
        (rate.max(self.low) / self.low).log10() / (self.high / self.low).log10()
    }

    fn x(&self, rate: f64) -> f64 {
        MARGIN + self.share(rate) * (WIDTH - 2.0 * MARGIN)
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - MARGIN - self.share(rate) * (HEIGHT - 2.0 * MARGIN)
    }
}

fn received(round: &Round) -> f64 {
    float(round.actual()) / round.seconds
}

/// Draws the plot as SVG.
pub(super) fn svg(series: &[(Limits, Vec<Round>)]) -> String {
    let axes = Axes::new(series);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<title>Alerts received over actions played</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    grid(&mut svg, &axes);
    for (index, (limits, rounds)) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        line(&mut svg, &axes, rounds, colour);
        let (x, y) = (
            MARGIN + 12.0,
            MARGIN + 18.0 + 18.0 * float(u64::try_from(index).unwrap_or(0)),
        );
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{}</text>",
            table::title(*limits)
        );
    }
    svg + "</svg>\n"
}

fn grid(svg: &mut String, axes: &Axes) {
    let mut rate = axes.low;
    while rate <= axes.high * 1.001 {
        let (x, y) = (axes.x(rate), axes.y(rate));
        let (left, right, top, bottom) = (MARGIN, WIDTH - MARGIN, MARGIN, HEIGHT - MARGIN);
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {top}V{bottom}M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>\n\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{rate}</text>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{rate}</text>",
            bottom + 18.0,
            left - 8.0,
            y + 4.0
        );
        rate *= 10.0;
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"#999\" stroke-dasharray=\"4 4\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">actions played a second</text>\n\
         <text x=\"{MARGIN}\" y=\"{}\">alerts received a second; rings are rounds with a loss</text>",
        axes.x(axes.low),
        axes.y(axes.low),
        axes.x(axes.high),
        axes.y(axes.high),
        WIDTH / 2.0,
        HEIGHT - 16.0,
        MARGIN - 16.0
    );
}

fn line(svg: &mut String, axes: &Axes, rounds: &[Round], colour: &str) {
    let point = |round: &Round| (axes.x(round.eps()), axes.y(received(round)));
    let points: Vec<String> = rounds
        .iter()
        .map(|round| {
            let (x, y) = point(round);
            format!("{x:.1},{y:.1}")
        })
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        points.join(" ")
    );
    for round in rounds {
        let (x, y) = point(round);
        let fill = if round.is_dropping() { "white" } else { colour };
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::round::tests::round;
    use super::*;

    #[test]
    fn every_round_has_a_point_and_losses_are_rings() {
        let svg = svg(&[(
            Limits::default(),
            vec![round(1, 100, 0), round(2, 400, 100)],
        )]);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert_eq!(svg.matches("r=\"4\" fill=\"white\"").count(), 1);
        assert!(svg.contains("<polyline") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn rates_lie_on_the_paper() {
        let axes = Axes::new(&[(
            Limits::default(),
            vec![round(1, 37, 0), round(2, 5200, 5200)],
        )]);
        assert!((axes.low - 10.0).abs() < 1e-9 && (axes.high - 10_000.0).abs() < 1e-6);
        assert!(
            (axes.x(0.0) - MARGIN).abs() < 1e-9,
            "nothing is at the edge"
        );
        let nothing = Axes::new(&[]);
        assert!(nothing.x(1.0).is_finite());
    }
}
