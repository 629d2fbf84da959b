//! The rule engine as capture engines use it: rules in, events judged, alerts and a plan out.

mod case;
mod engine;
mod examples;
mod openings;
mod properties;
mod reference;
mod stock;
