//! Renders figures: a self-contained HTML page with drawings, and machine-readable formats.
//!
//! The crate knows nothing about benchmarks: callers pass names, numbers and sentences, and it lays them out.
//! The page needs no network and no script, follows the reader's choice of light or dark, folds on narrow
//! screens and prints: labels are text beside the drawings, not in them, and drawings use percentages of the
//! available width.

mod curve;
mod escape;
mod forest;
mod form;
mod heat;
mod page;
mod scale;
mod strip;

pub use curve::{Curve, Curves};
pub use forest::{Forest, ForestRow};
pub use form::{Case, Measure, Outcome, bencher, csv, junit};
pub use heat::Heat;
pub use page::{Body, Cells, Page, Part};
pub use strip::{Strip, Strips};

/// Number of series that have a colour of their own (`style.css`).
const COLOURS: usize = 10;

/// Formats a number for a reader: four significant digits, large numbers in full.
#[must_use]
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size == 0.0 || size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}
