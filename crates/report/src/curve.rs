//! Line charts: one quantity over another.

use std::fmt::Write;

use crate::escape::escape;
use crate::forest::short;
use crate::scale::Scale;

/// Several lines on common axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// Title of the horizontal axis, below the drawing.
    pub x_title: String,
    /// Title of the vertical axis, above the drawing.
    pub y_title: String,
    /// Names of the positions 0, 1, 2 ... on the horizontal axis; empty if the axis is numeric.
    pub x_names: Vec<String>,
    /// The lines.
    pub curves: Vec<Curve>,
}

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Name of the series.
    pub label: String,
    /// Points (x, y) from left to right.
    pub points: Vec<(f64, f64)>,
    /// Index of the series' colour.
    pub series: usize,
}

impl Curves {
    pub(crate) fn html(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter());
        let x = if self.x_names.is_empty() {
            Scale::fitting(points().map(|point| point.0))
        } else {
            Scale::fitting([-0.3, self.x_names.len() as f64 - 0.7].into_iter())
        };
        let y = Scale::fitting(points().map(|point| point.1));
        let mut out = format!(
            "<figure class=\"curves\"><figcaption>{}</figcaption><svg role=\"img\" aria-label=\"{} over {}\">\
             <svg x=\"9%\" y=\"6\" width=\"88%\" height=\"220\" viewBox=\"0 0 100 100\" preserveAspectRatio=\"none\">",
            escape(&self.y_title),
            escape(&self.y_title),
            escape(&self.x_title)
        );
        out += &self.drawing(x, y);
        out += "</svg>";
        out += &self.labels(x, y);
        write!(
            out,
            "</svg><p class=\"x\">{}</p><p class=\"key\">",
            escape(&self.x_title)
        )
        .expect("text grows");
        for curve in &self.curves {
            write!(
                out,
                "<span><i class=\"k{}\"></i>{}</span> ",
                curve.series % crate::COLOURS,
                escape(&curve.label)
            )
            .expect("text grows");
        }
        out + "</p></figure>\n"
    }

    fn drawing(&self, x: Scale, y: Scale) -> String {
        let mut out = String::new();
        for tick in y.ticks(5) {
            let height = 100.0 - y.place(tick);
            write!(out, "<path class=\"grid\" d=\"M0 {height:.2}H100\"/>").expect("text grows");
        }
        for curve in &self.curves {
            let series = curve.series % crate::COLOURS;
            let places: Vec<String> = (curve.points.iter())
                .map(|(at, value)| format!("{:.2},{:.2}", x.place(*at), 100.0 - y.place(*value)))
                .collect();
            write!(
                out,
                "<polyline class=\"s{series} curve\" points=\"{}\"/>",
                places.join(" ")
            )
            .expect("text grows");
            for place in places {
                // A zero-length line with round caps is a dot that does not stretch.
                let place = place.replace(',', " ");
                write!(out, "<path class=\"s{series} point\" d=\"M{place}h0\"/>")
                    .expect("text grows");
            }
        }
        out
    }

    fn labels(&self, x: Scale, y: Scale) -> String {
        let mut out = String::new();
        for tick in y.ticks(5) {
            let height = 6.0 + 220.0 * (100.0 - y.place(tick)) / 100.0 + 4.0;
            write!(
                out,
                "<text x=\"8.4%\" y=\"{height:.1}\" text-anchor=\"end\">{}</text>",
                short(tick)
            )
            .expect("text grows");
        }
        let names: Vec<(f64, String)> = if self.x_names.is_empty() {
            x.ticks(5)
                .into_iter()
                .map(|tick| (tick, short(tick)))
                .collect()
        } else {
            let places = (0_u32..).map(f64::from);
            places.zip(self.x_names.iter().cloned()).collect()
        };
        for (at, name) in names {
            let place = 9.0 + 0.88 * x.place(at);
            write!(
                out,
                "<text x=\"{place:.2}%\" y=\"242\" text-anchor=\"middle\">{}</text>",
                escape(&name)
            )
            .expect("text grows");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_there_and_named_places_stand_below() {
        let curves = Curves {
            x_names: vec!["abc".to_owned(), "def".to_owned()],
            curves: vec![Curve {
                points: vec![(0.0, 1.0), (1.0, 3.0)],
                ..Curve::default()
            }],
            ..Curves::default()
        };
        let html = curves.html();
        assert_eq!(html.matches("class=\"s0 point\"").count(), 2);
        assert!(html.contains(">abc<") && html.contains(">def<"));
    }
}
