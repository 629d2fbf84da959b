//! The HTML page.

use std::fmt::Write;

use crate::escape::escape;
use crate::{Curves, Forest, Heat, Strips};

/// Contents of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Title of the page.
    pub title: String,
    /// Sentences below the title that state the findings.
    pub lead: Vec<String>,
    /// Measurement conditions as (name, value) pairs.
    pub facts: Vec<(String, String)>,
    /// Parts from top to bottom.
    pub parts: Vec<Part>,
}

/// One section of a page.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Heading of the section.
    pub heading: String,
    /// Explanation of how to read the section.
    pub note: String,
    /// Content of the section.
    pub body: Body,
}

/// Content of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A line chart.
    Curves(Curves),
    /// A forest plot.
    Forest(Forest),
    /// A heat map.
    Heat(Heat),
    /// Strip plots of every sample.
    Strips(Vec<Strips>),
    /// A table.
    Table(Cells),
}

/// Contents of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cells {
    /// Column headings.
    pub header: Vec<String>,
    /// Number of leading text columns; the rest are numbers.
    pub left: usize,
    /// Rows, with as many cells each as the header.
    pub rows: Vec<Vec<String>>,
}

const STYLE: &str = include_str!("style.css");

impl Page {
    /// Renders the whole document.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        );
        for sentence in &self.lead {
            writeln!(out, "<p class=\"lead\">{}</p>", escape(sentence)).expect("text grows");
        }
        for part in &self.parts {
            out += &part.html();
        }
        if !self.facts.is_empty() {
            out += "<section><h2>Where and how</h2>\n<dl>\n";
            for (name, value) in &self.facts {
                writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value))
                    .expect("text grows");
            }
            out += "</dl></section>\n";
        }
        out + "</main>\n</body>\n</html>\n"
    }
}

impl Part {
    fn html(&self) -> String {
        let body = match &self.body {
            Body::Curves(curves) => curves.html(),
            Body::Forest(forest) => forest.html(),
            Body::Heat(heat) => heat.html(),
            Body::Strips(strips) => strips.iter().map(Strips::html).collect(),
            Body::Table(cells) => cells.html(),
        };
        format!(
            "<section><h2>{}</h2>\n<p class=\"note\">{}</p>\n{body}</section>\n",
            escape(&self.heading),
            escape(&self.note)
        )
    }
}

impl Cells {
    fn html(&self) -> String {
        let row = |cells: &[String], tag: &str| -> String {
            cells
                .iter()
                .enumerate()
                .map(|(column, cell)| {
                    let class = if column < self.left {
                        ""
                    } else {
                        " class=\"n\""
                    };
                    format!("<{tag}{class}>{}</{tag}>", escape(cell))
                })
                .collect()
        };
        let body: String = (self.rows.iter())
            .map(|cells| format!("<tr>{}</tr>\n", row(cells, "td")))
            .collect();
        format!(
            "<div class=\"wide\"><table><thead><tr>{}</tr></thead><tbody>\n{body}</tbody></table></div>\n",
            row(&self.header, "th")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let part = |body| Part {
            heading: "A <part>".to_owned(),
            note: "n".to_owned(),
            body,
        };
        let page = Page {
            title: "t".to_owned(),
            lead: vec!["found".to_owned()],
            facts: vec![("kernel".to_owned(), "6".to_owned())],
            parts: vec![
                part(Body::Forest(Forest::default())),
                part(Body::Strips(vec![Strips::default()])),
                part(Body::Heat(Heat::default())),
                part(Body::Curves(Curves::default())),
                part(Body::Table(Cells::default())),
            ],
        };
        let html = page.html();
        assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
        assert_eq!(html.matches("A &lt;part&gt;").count(), 5);
        for outside in ["http", "url(", "<script", "@import", " src="] {
            assert!(!html.contains(outside), "{outside}");
        }
        for tag in ["section", "svg", "div", "table", "span"] {
            let opened = html.matches(&format!("<{tag}>")).count()
                + html.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
