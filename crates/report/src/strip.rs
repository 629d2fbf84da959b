//! Strip plots: every sample as a dot, over the box of the middle half.

use std::fmt::Write;

use crate::escape::escape;
use crate::forest::axis;
use crate::scale::Scale;

/// Rows of dots on one scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strips {
    /// Measured quantity with its unit.
    pub title: String,
    /// Rows from top to bottom.
    pub rows: Vec<Strip>,
}

/// The samples of one subject.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strip {
    /// Name of the subject.
    pub label: String,
    /// Samples in the order in which they were taken.
    pub values: Vec<f64>,
    /// First quartile, median, third quartile.
    pub quartiles: Option<[f64; 3]>,
    /// Median as text.
    pub figure: String,
    /// Index of the colour.
    pub series: usize,
}

impl Strips {
    pub(crate) fn html(&self) -> String {
        let values = self.rows.iter().flat_map(|row| row.values.iter().copied());
        let scale = Scale::fitting(values);
        let mut out = format!("<div class=\"rows\"><h3>{}</h3>\n", escape(&self.title));
        for row in &self.rows {
            out += &html_row(row, scale);
        }
        out += &axis(scale);
        out + "</div>\n"
    }
}

fn html_row(row: &Strip, scale: Scale) -> String {
    let series = row.series % crate::COLOURS;
    let mut drawing = String::new();
    if let Some([low, middle, high]) = row.quartiles.map(|three| three.map(|v| scale.place(v))) {
        write!(
            drawing,
            "<rect class=\"s{series} box\" x=\"{low:.2}%\" width=\"{:.2}%\" y=\"20%\" height=\"60%\"/>\
             <line class=\"s{series} span\" x1=\"{middle:.2}%\" x2=\"{middle:.2}%\" y1=\"15%\" y2=\"85%\"/>",
            (high - low).max(0.2)
        )
        .expect("text grows");
    }
    for (index, value) in row.values.iter().enumerate() {
        // Spread over the height by the golden ratio, so that equal values do not hide each other.
        let height = 25.0 + 50.0 * (index as f64 * 0.618_034).fract();
        write!(
            drawing,
            "<circle class=\"s{series} mark\" cx=\"{:.2}%\" cy=\"{height:.0}%\" r=\"2.2\"/>",
            scale.place(*value)
        )
        .expect("text grows");
    }
    format!(
        "<div class=\"row\"><span class=\"label\">{}</span><svg class=\"plot\" role=\"img\" \
         aria-label=\"{} samples\">{drawing}</svg><span class=\"figure\">{}</span>\
         <span class=\"verdict\">n = {}</span></div>\n",
        escape(&row.label),
        row.values.len(),
        escape(&row.figure),
        row.values.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_a_dot() {
        let strips = Strips {
            title: "open".to_owned(),
            rows: vec![Strip {
                values: vec![1.0, 2.0, 2.0],
                quartiles: Some([1.5, 2.0, 2.0]),
                ..Strip::default()
            }],
        };
        let html = strips.html();
        assert_eq!(html.matches("<circle").count(), 3);
        assert!(html.contains("n = 3"));
    }
}
