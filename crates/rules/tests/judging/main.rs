//! The rule engine as capture engines use it: rules are loaded, events evaluated, alerts and a plan returned.

mod case;
mod counting;
mod engine;
mod examples;
mod openings;
mod properties;
mod reference;
mod risk;
mod stock;
mod validation;
