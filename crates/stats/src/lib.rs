//! Estimators and tests on slices of numbers.
