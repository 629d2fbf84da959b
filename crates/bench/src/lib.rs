//! Runs workloads against subjects in interleaved order and records raw samples.
