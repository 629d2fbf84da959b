//! Forest plots: ratios with their intervals, one per row, around the line of no difference.

use std::fmt::Write;

use crate::escape::escape;
use crate::number;
use crate::scale::Scale;

/// A forest plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forest {
    /// Rows from top to bottom.
    pub rows: Vec<ForestRow>,
}

/// A ratio with its interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForestRow {
    /// Group name; consecutive rows of one group stand under one heading.
    pub group: String,
    /// Name of the compared subject.
    pub label: String,
    /// The ratio.
    pub estimate: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Conclusion about the ratio, in a few words.
    pub verdict: String,
    /// Index of the colour: 0 for the control, 1 and up for the rest.
    pub series: usize,
}

impl Forest {
    pub(crate) fn html(&self) -> String {
        let ends = self
            .rows
            .iter()
            .flat_map(|row| [row.low, row.high, row.estimate]);
        let scale = Scale::logarithmic(ends.chain([1.0]));
        let mut out = String::from("<div class=\"rows\">\n");
        let mut group = "";
        for row in &self.rows {
            if row.group != group {
                group = &row.group;
                writeln!(out, "<h3>{}</h3>", escape(group)).expect("text grows");
            }
            out += &html_row(row, scale);
        }
        out += &axis(scale);
        out + "</div>\n"
    }
}

fn html_row(row: &ForestRow, scale: Scale) -> String {
    let [low, middle, high] = [row.low, row.estimate, row.high].map(|value| scale.place(value));
    let one = scale.place(1.0);
    let series = row.series % crate::COLOURS;
    let said = format!(
        "{}: {} times native, {} to {}",
        row.label,
        number(row.estimate),
        number(row.low),
        number(row.high)
    );
    format!(
        "<div class=\"row\"><span class=\"label\">{label}</span>\
         <svg class=\"plot\" role=\"img\" aria-label=\"{said}\">\
         <line class=\"one\" x1=\"{one:.2}%\" x2=\"{one:.2}%\" y1=\"0\" y2=\"100%\"/>\
         <line class=\"s{series} span\" x1=\"{low:.2}%\" x2=\"{high:.2}%\" y1=\"50%\" y2=\"50%\"/>\
         <circle class=\"s{series} dot\" cx=\"{middle:.2}%\" cy=\"50%\" r=\"4.5\"/></svg>\
         <span class=\"figure\"><b>{estimate}</b> {ends}</span><span class=\"verdict\">{verdict}</span></div>\n",
        label = escape(&row.label),
        said = escape(&said),
        estimate = number(row.estimate),
        ends = escape(&format!(
            "{} \u{2013} {}",
            number(row.low),
            number(row.high)
        )),
        verdict = escape(&row.verdict),
    )
}

/// Renders the numbers below the rows.
pub(crate) fn axis(scale: Scale) -> String {
    let mut out = String::from(
        "<div class=\"row axis\" aria-hidden=\"true\"><span class=\"label\"></span><svg class=\"plot\">",
    );
    for tick in scale.ticks(5) {
        let place = scale.place(tick);
        let anchor = match place {
            at if at < 6.0 => "start",
            at if at > 94.0 => "end",
            _ => "middle",
        };
        write!(
            out,
            "<line class=\"tick\" x1=\"{place:.2}%\" x2=\"{place:.2}%\" y1=\"0\" y2=\"5\"/>\
             <text x=\"{place:.2}%\" y=\"18\" text-anchor=\"{anchor}\">{}</text>",
            short(tick)
        )
        .expect("text grows");
    }
    out + "</svg></div>\n"
}

/// Formats a round number without the zeros that `number` would add.
pub(crate) fn short(tick: f64) -> String {
    let (value, unit) = match tick.abs() {
        size if size >= 1e9 => (tick / 1e9, "G"),
        size if size >= 1e6 => (tick / 1e6, "M"),
        size if size >= 1e4 => (tick / 1e3, "k"),
        _ => (tick, ""),
    };
    let text = format!("{value:.4}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_drawn_on_its_side_of_one() {
        let row = |label: &str, estimate: f64| ForestRow {
            label: label.to_owned(),
            estimate,
            low: estimate * 0.9,
            high: estimate * 1.1,
            ..ForestRow::default()
        };
        let html = Forest {
            rows: vec![row("fast <x>", 0.5), row("slow", 4.0)],
        }
        .html();
        assert!(html.contains("fast &lt;x&gt;"));
        let places = |what: &str| -> Vec<f64> {
            html.split(what)
                .skip(1)
                .map(|rest| rest.split('%').next().unwrap().parse().unwrap())
                .collect()
        };
        let one = places("\"one\" x1=\"")[0];
        let dots = places(" cx=\"");
        assert!(dots[0] < one && one < dots[1], "{dots:?} {one}");
    }

    #[test]
    fn ticks_are_short() {
        assert_eq!(
            [0.5, 1.0, 2000.0, 20_000.0, 3e6].map(short),
            ["0.5", "1", "2000", "20k", "3M"]
        );
    }
}
