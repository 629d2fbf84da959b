//! What is written is read back as it was, and nothing that is read does harm.

mod fields;
mod hostile;
mod mutate;
mod openings;
mod plugins;
mod round_trip;
