//! Whetstone in double precision: eight sections of arithmetic, jumps, calls and functions.
//!
//! Curnow and Wichmann, "A synthetic benchmark", The Computer Journal 19 (1976), with the loop counts
//! of the double-precision version that UnixBench measures. One operation is one pass through all
//! sections with the counts times a hundred: ten million Whetstone instructions.

use std::hint::black_box;

use crate::Error;
use crate::measure::{Batch, Setup};

/// Factor of the counts of the definition.
const HUNDRED: usize = 100;
const ARRAY: usize = 12 * HUNDRED;
const PARAMETER: usize = 14 * HUNDRED;
const JUMPS: usize = 345 * HUNDRED;
const INTEGERS: usize = 210 * HUNDRED;
const ANGLES: usize = 32 * HUNDRED;
const CALLS: usize = 899 * HUNDRED;
const REFERENCES: usize = 616 * HUNDRED;
const FUNCTIONS: usize = 93 * HUNDRED;

/// Constants that the compiler must not know.
struct Constants {
    t: f64,
    t1: f64,
    t2: f64,
}

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    let constants = black_box(Constants {
        t: 0.499_999_75,
        t1: 0.500_000_25,
        t2: 2.0,
    });
    Ok(Box::new(move |times| {
        for _ in 0..times {
            check(pass(&constants))?;
        }
        Ok(())
    }))
}

/// Checks the results of sections 5 and 8, which show that the arithmetic was done.
fn check((angle, root): (f64, f64)) -> Result<(), Error> {
    if (0.45..0.55).contains(&angle) && (0.74..0.76).contains(&root) {
        return Ok(());
    }
    Err(Error::Unexpected {
        expected: "0.5 and 0.75 as the fixed points of sections 5 and 8".to_owned(),
        got: format!("{angle} and {root}"),
    })
}

#[inline(never)]
fn pass(constants: &Constants) -> (f64, f64) {
    let Constants { t, t1, t2 } = *constants;
    let mut e = [1.0, -1.0, -1.0, -1.0];
    for _ in 0..ARRAY {
        mix(&mut e, t, |last| last * t);
    }
    for _ in 0..PARAMETER {
        six_times(&mut e, t, t2);
    }
    black_box(jumps());
    integers(&mut e);
    let angle = angles(t, t2);
    let (mut x, mut y, mut z) = (1.0, 1.0, 1.0);
    for _ in 0..CALLS {
        three(&mut x, &mut y, &mut z, [t, t1, t2]);
    }
    black_box((x, y, z));
    e = [1.0, 2.0, 3.0, e[3]];
    let places = black_box([0, 1, 2]);
    for _ in 0..REFERENCES {
        rotate(&mut e, places);
    }
    black_box(&e);
    let mut root = 0.75_f64;
    for _ in 0..FUNCTIONS {
        root = (root.ln() / t1).exp().sqrt();
    }
    (angle, root)
}

/// Section 1; with another scale of the last element, the body of section 2.
#[inline]
fn mix(e: &mut [f64; 4], t: f64, scale: impl Fn(f64) -> f64) {
    e[0] = (e[0] + e[1] + e[2] - e[3]) * t;
    e[1] = (e[0] + e[1] - e[2] + e[3]) * t;
    e[2] = (e[0] - e[1] + e[2] + e[3]) * t;
    e[3] = scale(-e[0] + e[1] + e[2] + e[3]);
}

/// Section 2.
fn six_times(e: &mut [f64; 4], t: f64, t2: f64) {
    for _ in 0..6 {
        mix(e, t, |last| last / t2);
    }
}

/// Section 3.
fn jumps() -> i64 {
    let mut j = black_box(1_i64);
    for _ in 0..JUMPS {
        j = if j == 1 { 2 } else { 3 };
        j = i64::from(j <= 2);
        j = i64::from(j < 1);
    }
    j
}

/// Section 4.
fn integers(e: &mut [f64; 4]) {
    let (mut j, mut k, mut l) = black_box((1_i64, 2_i64, 3_i64));
    let place = |number: i64| usize::try_from(number - 2).unwrap_or_default() % 4;
    for _ in 0..INTEGERS {
        j = j * (k - j) * (l - k);
        k = l * k - (l - j) * k;
        l = (l - k) * (k + j);
        e[place(l)] = (j + k + l) as f64;
        e[place(k)] = (j * k * l) as f64;
    }
}

/// Section 5; the definition's loop begins at 1.
fn angles(t: f64, t2: f64) -> f64 {
    let (mut x, mut y) = (0.5_f64, 0.5_f64);
    for _ in 1..ANGLES {
        let below = |x: f64, y: f64| (x + y).cos() + (x - y).cos() - 1.0;
        x = t * (t2 * x.sin() * x.cos() / below(x, y)).atan();
        y = t * (t2 * y.sin() * y.cos() / below(x, y)).atan();
    }
    y
}

/// Section 6.
fn three(x: &mut f64, y: &mut f64, z: &mut f64, [t, t1, t2]: [f64; 3]) {
    *x = *y;
    *y = *z;
    *x = t * (*x + *y);
    *y = t1 * (*x + *y);
    *z = (*x + *y) / t2;
}

/// Section 7.
fn rotate(e: &mut [f64; 4], [j, k, l]: [usize; 3]) {
    e[j] = e[k];
    e[k] = e[l];
    e[l] = e[j];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_points_come_out() {
        let constants = Constants {
            t: 0.499_999_75,
            t1: 0.500_000_25,
            t2: 2.0,
        };
        check(pass(&constants)).unwrap();
        assert!(check((0.5, f64::NAN)).is_err());
    }
}
