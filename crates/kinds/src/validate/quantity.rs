//! Quantities of Kubernetes, such as `100m` and `1.5Gi`.

/// Units of a quantity in billionths, the smallest unit that Kubernetes keeps.
const ONE: i128 = 1_000_000_000;

const SUFFIXES: [(&str, i128); 15] = [
    ("", ONE),
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("k", ONE * 1_000),
    ("M", ONE * 1_000_000),
    ("G", ONE * 1_000_000_000),
    ("T", ONE * 1_000_000_000_000),
    ("P", ONE * 1_000_000_000_000_000),
    ("E", ONE * 1_000_000_000_000_000_000),
    ("Ki", ONE << 10),
    ("Mi", ONE << 20),
    ("Gi", ONE << 30),
    ("Ti", ONE << 40),
    ("Pi", ONE << 50),
];

/// The quantity in billionths, rounded up; `None` if the text is no quantity or too large.
pub(super) fn billionths(text: &str) -> Option<i128> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (digits, suffix) = unsigned.split_at(end.unwrap_or(unsigned.len()));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (unit, divisor) = unit(suffix)?;
    let mantissa: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let divisor = power(u32::try_from(fraction.len()).ok()?)?.checked_mul(divisor)?;
    let product = mantissa.checked_mul(unit)?;
    let rounded = product.div_euclid(divisor) + i128::from(product.rem_euclid(divisor) != 0);
    Some(if text.starts_with('-') {
        -rounded
    } else {
        rounded
    })
}

/// A factor and a divisor for a suffix.
fn unit(suffix: &str) -> Option<(i128, i128)> {
    if let Some((_, unit)) = SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Some((*unit, 1));
    }
    if suffix == "Ei" {
        return Some((ONE << 60, 1));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let factor = power(exponent.unsigned_abs())?;
    match exponent < 0 {
        true => Some((ONE, factor)),
        false => Some((ONE.checked_mul(factor)?, 1)),
    }
}

fn power(exponent: u32) -> Option<i128> {
    10_i128.checked_pow(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_compared_across_suffixes() {
        let same = [
            ("1", "1000m"),
            ("1k", "1e3"),
            ("1Ki", "1024"),
            ("1.5Gi", "1610612736"),
            ("0.5", "500m"),
            ("1Ei", "1024Pi"),
            ("2E-3", "2m"),
            (".5", "0.5"),
            ("-1", "-1000m"),
        ];
        for (one, other) in same {
            assert_eq!(billionths(one), billionths(other), "{one} and {other}");
            assert!(billionths(one).is_some(), "{one}");
        }
        assert!(billionths("100Mi") > billionths("100M"));
        assert_eq!(billionths("0.1n"), Some(1), "rounded up");
    }

    #[test]
    fn a_text_that_is_no_quantity_is_none() {
        for text in [
            "",
            "-",
            ".",
            "Mi",
            "1 Mi",
            "1Mib",
            "1e",
            "1e400",
            "9999999999999999999999999999Ei",
        ] {
            assert_eq!(billionths(text), None, "{text}");
        }
    }
}
