//! Heat maps: tables whose cells are coloured by their ratio.

use std::fmt::Write;

use crate::escape::escape;
use crate::number;

/// Ratios of rows by columns; a ratio of 1 is white.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heat {
    /// Column headings.
    pub columns: Vec<String>,
    /// Row names with one cell per column. `None` was not measured.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

/// Ratio from which the colour is fully saturated.
const HOTTEST: f64 = 20.0;

impl Heat {
    pub(crate) fn html(&self) -> String {
        let mut out =
            String::from("<div class=\"wide\"><table class=\"heat\"><thead><tr><th></th>");
        for column in &self.columns {
            write!(out, "<th scope=\"col\">{}</th>", escape(column)).expect("text grows");
        }
        out += "</tr></thead><tbody>\n";
        for (name, cells) in &self.rows {
            write!(out, "<tr><th scope=\"row\">{}</th>", escape(name)).expect("text grows");
            for cell in cells {
                out += &match cell {
                    Some(ratio) => html_cell(*ratio),
                    None => "<td class=\"none\" title=\"not measured\">\u{2013}</td>".to_owned(),
                };
            }
            out += "</tr>\n";
        }
        out + "</tbody></table></div>\n"
    }
}

fn html_cell(ratio: f64) -> String {
    let share = (ratio.max(1e-3).ln() / HOTTEST.ln()).clamp(-1.0, 1.0);
    let colour = if share < 0.0 { "cold" } else { "hot" };
    let percent = share.abs() * 80.0;
    format!(
        "<td style=\"background:color-mix(in srgb,var(--{colour}) {percent:.0}%,var(--paper))\">{}</td>",
        number(ratio)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_is_hotter() {
        let heat = Heat {
            columns: vec![
                "a".to_owned(),
                "b".to_owned(),
                "c".to_owned(),
                "d".to_owned(),
            ],
            rows: vec![("x".to_owned(), vec![Some(1.0), Some(20.0), Some(0.5), None])],
        };
        let html = heat.html();
        assert!(html.contains("var(--hot) 0%") && html.contains("var(--hot) 80%"));
        assert!(html.contains("var(--cold)") && html.contains("not measured"));
    }
}
