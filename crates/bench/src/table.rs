//! Tables for terminals and for Markdown.

/// Rows of cells under a header. The first `left` columns are text, the others numbers.
pub(crate) struct Table {
    left: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(left: usize, header: [&str; N]) -> Self {
        Self {
            left,
            rows: vec![header.map(str::to_owned).to_vec()],
        }
    }

    pub(crate) fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Returns true if there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// Returns the number of text columns, and all rows with the header first.
    pub(crate) fn into_cells(self) -> (usize, Vec<Vec<String>>) {
        (self.left, self.rows)
    }

    /// Formats the table as text, with columns aligned by blanks.
    pub(crate) fn text(&self) -> String {
        self.render(
            |cells| cells.join("  ").trim_end().to_owned() + "\n",
            |_| String::new(),
        )
    }

    /// Formats the table as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        self.render(line, |widths| {
            let rule = widths.iter().enumerate().map(|(column, width)| {
                if column < self.left {
                    "-".repeat(*width)
                } else {
                    "-".repeat(width - 1) + ":"
                }
            });
            line(&rule.collect::<Vec<_>>())
        })
    }

    fn render(
        &self,
        line: impl Fn(&[String]) -> String,
        rule: impl Fn(&[usize]) -> String,
    ) -> String {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
        };
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0).max(2)).collect();
        let mut out = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, width))| {
                    if column < self.left {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                })
                .collect();
            out += &line(&cells);
            if index == 0 {
                out += &rule(&widths);
            }
        }
        out
    }
}

/// Formats a time with three digits and a suitable unit.
pub(crate) fn time(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        size if size < 1e3 => (ns, "ns"),
        size if size < 1e6 => (ns / 1e3, "us"),
        size if size < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let decimals = match value.abs() {
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// Formats a ratio with four digits, but at least one decimal.
pub(crate) fn ratio(ratio: f64) -> String {
    let decimals = match ratio {
        size if size < 10.0 => 3,
        size if size < 100.0 => 2,
        _ => 1,
    };
    format!("{ratio:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_keep_four_digits() {
        assert_eq!(
            [0.9871, 1.25, 14.456, 752.716].map(ratio),
            ["0.987", "1.250", "14.46", "752.7"]
        );
    }

    #[test]
    fn text_and_markdown_show_the_same_cells() {
        let mut table = Table::new(1, ["name", "n"]);
        table.push(["a".into(), "12".into()]);
        assert_eq!(table.text(), "name   n\na     12\n");
        assert_eq!(
            table.markdown(),
            "| name |  n |\n| ---- | -: |\n| a    | 12 |\n"
        );
    }

    #[test]
    fn times_keep_three_digits() {
        let shown = [93.4, 2_512.0, 17_300_000.0, 1.5e9, 0.0].map(time);
        assert_eq!(
            shown,
            ["93.4 ns", "2.51 us", "17.3 ms", "1.50 s", "0.00 ns"]
        );
    }
}
